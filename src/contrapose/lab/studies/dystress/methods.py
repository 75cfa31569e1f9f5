"""Methods, quantities and data sets of the DySTreSS paper, and functions that build rows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from contrapose.lab.studies.baselines import baseline_changes, settings_on_cifar
from contrapose.lab.studies.dystress.printed import TABLE11_TASKS
from contrapose.lab.studies.measures import LinearProbe, LinearSVM, Metric, NearestNeighbours, RecordedKNN, Transfer
from contrapose.lab.studies.results import column
from contrapose.lab.studies.study import CIFAR10, CIFAR100, Quantity, Row, Settings, StudyData
from contrapose.lab.training import PRESETS

CIFAR_PRESET, IMAGENET100_PRESET, IMAGENET_PRESET = "dystress/cifar10", "dystress/imagenet100", "dystress/imagenet"
TABLE8_PRESET = "dystress/table8-imagenet100"


def cosine_loss(low: float, high: float, shift: float | None = None) -> str:
    """Return the DySTreSS loss with temperatures between `low` and `high`.

    Runs on ImageNet always state the range: their data is a path, so there is no default range.
    """
    shifted = "" if shift is None else f", shift={shift:g}"
    return f"dystress(temperature=cosine({low:g}, {high:g}{shifted}))"


# Methods without negatives: their names in the tables, and the names of their presets. Table 8 has widths in brackets.
_LIGHTLY_BASELINES = {"BYOL": "byol", "Barlow Twins": "barlow-twins", "VICReg": "vicreg"}
_TABLE8_BASELINES = {
    "Barlow Twins (2048)": "barlow-twins",
    "VICReg (2048)": "vicreg",
    "ZeroICL (256)": "zero-icl",
    "ZeroFCL (2048)": "zero-fcl",
    "ZeroCL (2048)": "zero-cl",
    "W-MSE (256)": "w-mse",
    "ARB (2048)": "arb",
    "DINO (256)": "dino",
    "BYOL (4096)": "byol",
}
_TABLE9_BASELINES = {"DINO": "dino", "W-MSE": "w-mse"}
# A quarter of the epochs, with W-MSE's milestones scaled accordingly.
_SHORT_SETTINGS: Mapping[str, Settings] = {"W-MSE (256)": {"milestones": (38, 44)}}
_BASELINES = {**_LIGHTLY_BASELINES, **_TABLE8_BASELINES, **_TABLE9_BASELINES}


def _changes(methods: Mapping[str, str], data: str, preset: str) -> dict[str, Settings]:
    return {name: baseline_changes(method, data, preset=preset) for name, method in methods.items()}


# Methods by their name in the tables.
MOCO_V2: Settings = {
    "loss": "nt_xent(temperature=0.1)",
    "framework": "moco",
    "head": "moco-v2",
    "queue": 4096,
    "momentum": 0.99,
    "norm_splits": 8,
    "symmetric": True,
}
# The paper used lightly, whose DCL and DCLW differed from the published methods until 2025.
DCL_METHODS: Mapping[str, Settings] = {
    "DCL": {"loss": "dcl"},
    "DCLW": {"loss": "dclw"},
    "DCL (old form)": {"loss": "dcl(split_views=True)"},
    "DCLW (old form)": {"loss": "dclw(split_views=True)"},
}
CIFAR_METHODS: Mapping[str, Settings] = {
    "SimCLR": {"loss": "simclr"},
    "MoCo v2": MOCO_V2,
    **DCL_METHODS,
    **_changes(_TABLE9_BASELINES, "cifar10", CIFAR_PRESET),
    "MACL": {"loss": "macl"},
    "DySTreSS": {"loss": "dystress"},
    "DySTreSS*": {"loss": cosine_loss(0.1, 0.2)},
    "Kukleva et al.": {"loss": "temperature_schedule"},
    "cosine": {"loss": "dystress"},
    "linear": {"loss": "nt_xent(temperature=linear(0.07, 0.2))"},
    "exponential": {"loss": "nt_xent(temperature=exponential(0.07, 0.2))"},
    "monotonic cosine": {"loss": "nt_xent(temperature=monotonic_cosine(0.07, 0.2))"},
}
IMAGENET_METHODS: Mapping[str, Settings] = {
    "SimCLR": {"loss": "simclr(temperature=0.1)"},
    **DCL_METHODS,
    **_changes(_LIGHTLY_BASELINES, "imagenet", IMAGENET_PRESET),
    **_changes(_TABLE8_BASELINES, "imagenet100", TABLE8_PRESET),
    "MACL": {"loss": "macl"},
    "DySTreSS": {"loss": cosine_loss(0.1, 0.2)},
    "DySTreSS*": {"loss": cosine_loss(0.1, 0.2, -0.4)},
    "DySTreSS (2048)": {"loss": cosine_loss(0.1, 0.2)},
    "DySTreSS + DCL": {"loss": "dystress_dcl"},
    "DySTreSS + DCL (authors' code)": {"loss": "dystress_dcl_authors"},
    "Kukleva et al.": {"loss": "temperature_schedule"},
}
RANGE_METHODS: Mapping[str, Settings] = {
    f"{low:g}–{high:g}": {"loss": cosine_loss(low, high)}
    for low, high in ((0.07, 0.1), (0.07, 0.5), (0.07, 0.2), (0.1, 0.2))
}
SHIFT_METHODS: Mapping[str, Settings] = {
    f"Δs = {shift:g}": {"loss": cosine_loss(0.1, 0.2, shift)} for shift in (0, 0.2, 0.4, -0.2, -0.4)
}

# Data sets.
LONG_TAIL = "exponential:100"
# Evaluated in each epoch; the authors' code reports the best epoch.
CIFAR_SETS = tuple(replace(regular, changes={"knn_every": 1}) for regular in (CIFAR10, CIFAR100))
CIFAR_LT_SETS = tuple(
    StudyData(name=f"{regular.name}-LT", data=regular.data, changes={"imbalance": LONG_TAIL}) for regular in CIFAR_SETS
)
# Table 4: the splits of Kukleva et al., from 4500 or 450 images of a class.
KUKLEVA_SETS = tuple(replace(tail, changes={"imbalance": "kukleva:0"}) for tail in CIFAR_LT_SETS)
_IMAGENET100: Settings = {"stream": True, "classes": "imagenet100"}
IMAGENET100 = (StudyData(name="ImageNet-100", data="imagenet100", changes=_IMAGENET100),)
IMAGENET = (StudyData(name="ImageNet-1K", data="imagenet", changes={"stream": True}),)
IMAGENET100_LT = (
    StudyData(name="ImageNet-100-LT", data="imagenet100", changes={**_IMAGENET100, "imbalance": "pareto:12205"}),
)

# What is measured. The paper computes its metrics on the encoder's normalised output on the test images.
# The authors' code reports the best epoch of 200-NN and of the linear probe; we report the last epoch as well.
BEST_KNN = Quantity(name="best epoch", measure=RecordedKNN(best=True))
KNN = (BEST_KNN, Quantity(name="", measure=RecordedKNN(), extra=True))
ACCURACY = Quantity(name="accuracy", measure=RecordedKNN(best=True))
LINEAR = (
    Quantity(name="top-1", measure=LinearProbe("dystress-imagenet-crops", best=True)),
    Quantity(name="top-5", measure=LinearProbe("dystress-imagenet-crops", best=True, top=5)),
)
LAST_EPOCH = Quantity(name="last epoch", measure=LinearProbe("dystress-imagenet-crops"), extra=True)
KNN20 = (
    Quantity(name="20-NN top-1", measure=NearestNeighbours(20, "softmax")),
    Quantity(name="20-NN top-5", measure=NearestNeighbours(20, "softmax", top=5)),
)
KNN20_AND_LINEAR = (*KNN20, *(replace(quantity, name=f"linear {quantity.name}") for quantity in LINEAR))
KNN1_AND_KNN10 = (
    Quantity(name="1-NN", measure=NearestNeighbours(1, "distance")),
    Quantity(name="10-NN", measure=NearestNeighbours(10, "distance")),
)
KUKLEVA_PROTOCOL = tuple(
    Quantity(name=name, measure=measure, paper="one accuracy, without saying which")
    for name, measure in {
        "1-NN": NearestNeighbours(1, "uniform"),
        "10-NN": NearestNeighbours(10, "uniform"),
        "few-shot": LinearSVM("few_shot"),
        "long-tail": LinearSVM("long_tail"),
    }.items()
)
UNIFORMITY_AND_TOLERANCE = (
    Quantity(name="-U", measure=Metric("uniformity", "encoder"), unit="", negated=True),
    Quantity(name="T", measure=Metric("tolerance", "encoder"), unit=""),
)
INTERCLASS_UNIFORMITY = Quantity(name="inter-class U", measure=Metric("interclass_uniformity", "encoder"), unit="")
TABLE13_METRICS = (
    Quantity(name="U", measure=Metric("uniformity", "encoder"), unit=""),
    Quantity(
        name="A",
        measure=Metric("alignment_class", "encoder"),
        unit="",
        paper="alignment of positive pairs (encoder's output), without saying which pairs",
    ),
    INTERCLASS_UNIFORMITY,
)
FIGURE5_QUANTITIES = (KNN20[0], *UNIFORMITY_AND_TOLERANCE, INTERCLASS_UNIFORMITY)
# Table 11: the trained encoder, the untrained one, and one with supervised weights.
TRANSFER_TASKS = tuple(Quantity(name=task, measure=Transfer(name, "dystress")) for task, name in TABLE11_TASKS.items())

# Small and short scales. CIFAR-10 replaces ImageNet, with CIFAR's settings, so that runs are shared with the studies on
# CIFAR.
SMALL_SCALE_IMAGENET: Settings = {
    **{key: value for key, value in PRESETS[CIFAR_PRESET].items() if key not in ("data", "loss")},
    "head": "simclr",
}
# One period of the temperature schedule; 2000 epochs would take more than six minutes.
SMALL_SCALE_KUKLEVA: Settings = {"epochs": 400}
SHORT_SCALE: Settings = {"epochs": 50}
SHORT_SCALE_LT: Settings = {
    "epochs": 200
}  # a quarter of CIFAR-10's images, so as many steps as 50 epochs on all images

# Notes that several studies share.
OLD_DCL_NOTE = (
    "The paper's numbers for DCL and DCLW are for lightly's old form, which repels twice as much (split_views=True). The "
    "methods as originally published have separate rows, for which the paper has no numbers."
)
SELF_PAIRS = (
    "The authors' code counts each image's pair with itself too, which raises U by about 0.002 on 10,000 images; ours "
    "counts distinct pairs.",
)
TOLERANCE_PAIRS = (
    *SELF_PAIRS,
    "The authors' code divides tolerance by a tenth of all pairs, which is correct only for ten balanced classes; ours "
    "divides by the number of pairs within classes.",
)
NOISE_NOTE = "DySTreSS on CIFAR-10 has 85.68, 85.83 or 85.85 in different tables of the paper: noise of ±0.2."


def method_rows(
    methods: Mapping[str, Settings],
    quantities: Sequence[Quantity],
    sets: Sequence[StudyData],
    table: Mapping[str, Sequence[float | None]],
) -> tuple[Row, ...]:
    """Return a row for each method in a table. The paper's numbers are ordered by data set, then by quantity."""
    columns = [column(quantity.name, study_data.name) for study_data in sets for quantity in quantities]
    rows = []
    for method, values in table.items():
        numbers = {name: value for name, value in zip(columns, values, strict=True) if value is not None}
        # Otherwise the row's own settings would override the study's settings for these scales.
        small = settings_on_cifar(_BASELINES[method], methods[method]) if method in _BASELINES else {}
        short = _SHORT_SETTINGS.get(method, {})
        rows.append(
            Row(name=method, changes=methods[method], printed=numbers, small_settings=small, short_settings=short)
        )
    return tuple(rows)


def transfer_rows(table: Mapping[str, Sequence[float | None]]) -> tuple[Row, ...]:
    """Return the rows of Table 11. Rows without pretraining use the network of SimCLR's run."""
    methods = {**IMAGENET_METHODS, **dict.fromkeys(("supervised", "scratch"), IMAGENET_METHODS["SimCLR"])}
    weights = {"supervised": "supervised", "scratch": "start"}
    rows = method_rows(methods, TRANSFER_TASKS, IMAGENET, table)
    return tuple(replace(row, measure_changes={"weights": weights.get(row.name, "")}) for row in rows)


def published_dcl(*names: str) -> tuple[Row, ...]:
    """Return rows for DCL or DCLW as originally published, for which the paper has no numbers."""
    return tuple(Row(name=name, changes=DCL_METHODS[name]) for name in names)


def row_names(rows: Sequence[Row]) -> list[str]:
    """Return the names of rows."""
    return [row.name for row in rows]
