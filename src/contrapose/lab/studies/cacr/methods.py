"""Methods and data sets of the CACR paper, and functions that build rows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from contrapose.lab.studies.cacr.baselines import BASELINES
from contrapose.lab.studies.cacr.printed import METHODS, T_VALUES, VARIANT_COLUMNS
from contrapose.lab.studies.claims import is_above, is_best
from contrapose.lab.studies.measures import Detection, LinearProbe, Measure, StepSeconds
from contrapose.lab.studies.study import CIFAR10, Quantity, Row, Settings, StudyData
from contrapose.lab.training import PRESETS

CIFAR_PRESET, MOCO_PRESET = "cacr/cifar10", "cacr/moco-imagenet"
# Values that the paper tunes per data set: t⁻ with one positive and with four, and HN-CL's class prior τ⁺; and MoCo v3's
# temperature, which depends on the encoder. Data sets that are not listed use the values of the first one.
LOSS_VALUES = {
    "CIFAR-10": {"k1": 2.0, "k4": 0.9, "plus": 0.1, "tau": 1.0},
    "CIFAR-100": {"k1": 3.0, "k4": 2.0, "plus": 0.05},
    "STL-10": {"k1": 3.0, "k4": 2.0, "plus": 0.1},
    "ResNet-50": {"tau": 1.0},
    "ViT-B/16": {"tau": 0.2},
}

# Methods. {placeholders} in a loss are filled from LOSS_VALUES.
CL, AU_CL, HN_CL, CACR_K1, CMC, CACR_K4 = METHODS
_HARD_NEGATIVE = "hard_negative(temperature=0.5, beta=1.0, tau_plus={plus})"
LOSSES = {
    CL: "simclr(temperature=0.19)",
    AU_CL: "align_uniform",
    HN_CL: _HARD_NEGATIVE,
    CACR_K1: "cacr(t_neg={k1})",
    CMC: "cmc(temperature=0.19)",
    CACR_K4: "cacr(t_neg={k4})",
}
ALEXNET_METHODS: Mapping[str, Settings] = {name: {"loss": loss} for name, loss in LOSSES.items()}
RESNET_METHODS: Mapping[str, Settings] = {
    **ALEXNET_METHODS,
    CL: {"loss": "simclr(temperature=0.5)"},
    CMC: {"loss": "cmc(temperature=0.5)"},
}
# As in MoCo v2: one query per image, and negatives only from the queue. CACR keeps its preset: both views
# are queries, and the batch has negatives too.
_QUEUE_ONLY: Settings = {"symmetric": False, "batch_negatives": False}
MOCO_METHODS: Mapping[str, Settings] = {
    CL: {"loss": "simclr(temperature=0.2)", **_QUEUE_ONLY},
    AU_CL: {"loss": "align_uniform(align_weight=3.0, t=3.0)", "symmetric": False},
    HN_CL: {"loss": _HARD_NEGATIVE.format(plus=0.01), **_QUEUE_ONLY},
    CACR_K1: {"loss": "cacr(t_neg=2.0)"},
    CMC: {"loss": "cmc(temperature=0.07)", **_QUEUE_ONLY},
    CACR_K4: {"loss": "cacr(t_neg=2.0)"},
}
ONE_POSITIVE: Settings = {}
FOUR_POSITIVES: Settings = {"view_count": 5, "batch": 128, "lr": 0.06}
FIVE_VIEWS: Settings = {"view_count": 5}
# SimCLR's own settings, for tables whose preset is MoCo; the table sets data, epochs and evaluation.
_SIMCLR: Settings = {
    **{key: value for key, value in PRESETS["cacr/simclr-imagenet"].items() if key not in ("data", "epochs", "knn")},
    "framework": "simclr",
    **_QUEUE_ONLY,
    "norm_splits": 1,
}
CACR_MULTI_CROP = "CACR (multi-crop)"
# As in the authors' code, which supports only MoCo v3: two views, and eight local crops with multi-crop.
CACR_MOCO_V3: Settings = {"loss": "cacr_moco_v3(temperature={tau})"}
LOCAL_CROPS = {CACR_MULTI_CROP: 8, **{name: baseline.local_crops for name, baseline in BASELINES.items()}}
# The methods in Tables 4, 5, 7, 16 and 18. Rows without pretraining use the network of MoCo v2's run.
_METHODS: Mapping[str, Settings] = {
    "SimCLR": _SIMCLR,
    "MoCov2": MOCO_METHODS[CL],
    AU_CL: MOCO_METHODS[AU_CL],
    "MoCov3": {},  # the loss is that of its preset
    "CACR": CACR_MOCO_V3,
    CACR_MULTI_CROP: CACR_MOCO_V3,
    CACR_K1: MOCO_METHODS[CACR_K1],
    CACR_K4: {**MOCO_METHODS[CACR_K4], **FIVE_VIEWS},
    "scratch": MOCO_METHODS[CL],
    "supervised": MOCO_METHODS[CL],
    **{name: baseline.settings for name, baseline in BASELINES.items()},
}
VIT_SETTINGS = {name: value for name, value in PRESETS["cacr/moco-v3-vit"].items() if name != "data"}
# Settings that a ViT changes in methods other than MoCo v3; these keep their own projector, loss and views.
VIT_TRAINING = {name: VIT_SETTINGS[name] for name in ("encoder", "optimiser", "lr", "weight_decay", "warmup", "batch")}

# What is measured.
# On small images the authors' code reports the probe's best epoch; we report the last epoch as well.
LINEAR = (
    Quantity(name="", measure=LinearProbe("cacr-crops", best=True)),
    Quantity(name="last epoch", measure=LinearProbe("cacr-crops"), extra=True),
)
LINEAR_IMAGENET = (Quantity(name="", measure=LinearProbe("cacr-imagenet-crops")),)
LINEAR_MOCO_V3 = (Quantity(name="", measure=LinearProbe("moco-v3-crops")),)
VIT_PROBE: Mapping[Measure, Measure] = {LinearProbe("moco-v3-crops"): LinearProbe("moco-v3-vit-crops")}
DETECTION = tuple(
    Quantity(name=f"{task} {ap}", measure=Detection(data_set, f"{prefix}{ap}"))
    for task, data_set, prefix in (("VOC", "voc", ""), ("COCO", "coco", ""), ("COCO mask", "coco", "mask_"))
    for ap in ("AP50", "AP", "AP75")
)
STEP_SECONDS = (Quantity(name="", measure=StepSeconds(), unit="s"),)

# Data sets.
CIFAR100 = StudyData(name="CIFAR-100", data="cifar100", changes={"views": "align-uniform-cifar100"})
STL_RESNET = StudyData(name="STL-10", data="stl10", changes={"views": "align-uniform-stl"})
STL_ALEXNET = StudyData(name="STL-10", data="stl10", changes={"views": "align-uniform-stl", "encoder": "alexnet-64"})
CIFAR_AND_STL = (CIFAR10, CIFAR100, STL_ALEXNET)


def imbalanced(study_data: StudyData, rule: str) -> StudyData:
    """Return a data set whose classes are subsampled by one of the paper's rules, linear or exponential."""
    return StudyData(
        name=f"{study_data.name}, {rule}",
        data=study_data.data,
        changes={**study_data.changes, "imbalance": f"cacr-{rule}"},
    )


def imagenet(name: str = "ImageNet-1K", data: str = "imagenet", **changes: Any) -> StudyData:
    """Return ImageNet or a subset of ImageNet, streamed from disk."""
    return StudyData(name=name, data=data, changes={"stream": True, **changes})


IMAGENET100 = imagenet("ImageNet-100", "imagenet100", classes="imagenet100", batch=128)

# A quarter or half of the epochs, with the milestones scaled accordingly. The small scale uses the paper's epochs unless a run
# would take more than six minutes on one GPU.
SHORT_SCALE: Settings = {"epochs": 50, "milestones": (39, 42, 46)}
HALF_SCALE: Settings = {"epochs": 100, "milestones": (78, 85, 92)}
# CIFAR-10 in place of ImageNet: a small ResNet, and a queue that 50,000 images refill often enough. 50 epochs, since an epoch
# with four positives takes 3 to 8 s.
SMALL_SCALE_IMAGENET: Settings = {
    "encoder": "resnet18-cifar",
    "views": "simclr-cifar",
    "head": "simclr",
    "batch": 128,
    "optimiser": "sgd",
    "lr": 0.06,
    "weight_decay": 5e-4,
    "warmup": 0.0,
    "schedule": "cosine",
    "epochs": 50,
    "queue": 4096,
    "momentum": 0.99,
}

# Rows.
ByDataSet = Mapping[str, Sequence[float]]  # the paper's numbers by data set, in the order of the rows


def by_column(columns: Sequence[str], values: Sequence[float | None]) -> dict[str, float]:
    """Return the paper's numbers for a row, keyed by column, without numbers that the paper does not give."""
    return {name: value for name, value in zip(columns, values, strict=True) if value is not None}


def six_methods(
    printed: ByDataSet,
    methods: Mapping[str, Settings] = ALEXNET_METHODS,
    *,
    one_positive: Settings = ONE_POSITIVE,
    four_positives: Settings = FOUR_POSITIVES,
    one_positive_short: Settings = ONE_POSITIVE,
) -> tuple[Row, ...]:
    """Return a row for each of the six methods, with the paper's number for each data set.

    Methods with one and with four positives have different settings; `one_positive_short` applies at the short scale.
    """
    rows = []
    for index, (name, method) in enumerate(methods.items()):
        four = "K=4" in name
        rows.append(
            Row(
                name=name,
                changes={**method, **(four_positives if four else one_positive)},
                printed={data_set: values[index] for data_set, values in printed.items()},
                short_settings=ONE_POSITIVE if four else one_positive_short,
            )
        )
    return tuple(rows)


def sweep_t(
    name: str, loss: str, printed: ByDataSet, *, changes: Settings = FOUR_POSITIVES, series: str = ""
) -> tuple[Row, ...]:
    """Return a row for each t⁺ or t⁻, which replaces {t} in the loss."""
    rows = []
    for index, t in enumerate(T_VALUES):
        # The default t⁺ = 1 is omitted, so that the run has the same name as in the other tables and is shared with them.
        text = loss.replace("{t}", str(t)).replace("t_pos=1.0, ", "")
        numbers = {data_set: values[index] for data_set, values in printed.items()}
        rows.append(Row(name=f"{name} = {t:g}", changes={"loss": text, **changes}, printed=numbers, x=t, series=series))
    return tuple(rows)


def positives_row(count: int, printed: Mapping[str, float] | None = None) -> Row:
    """Return the settings of CACR with `count` positives, from `count` + 1 views."""
    changes = {"loss": LOSSES[CACR_K4], **FOUR_POSITIVES, "view_count": count + 1}
    return Row(name=f"K = {count}", changes=changes, printed=printed or {}, x=count)


def variants(
    losses: Mapping[str, str], table: Mapping[str, Sequence[float | None]], *, one_positive: Sequence[str] = ()
) -> tuple[Row, ...]:
    """Return a row for each variant of the objective; variants in `one_positive` have two views."""
    return tuple(
        Row(
            name=name,
            changes={"loss": loss, **(ONE_POSITIVE if name in one_positive else FOUR_POSITIVES)},
            printed=by_column(VARIANT_COLUMNS, table[name]),
        )
        for name, loss in losses.items()
    )


def method_rows(
    columns: Sequence[str],
    table: Mapping[str, Sequence[float | None]],
    changes: Mapping[str, Settings] = MappingProxyType({}),
    *,
    changes_on: Mapping[str, Mapping[str, Settings]] = MappingProxyType({}),
) -> tuple[Row, ...]:
    """Return a row for each method in a table; some rows have further changes, on all or on some data sets."""
    return tuple(
        Row(
            name=name,
            changes={**_METHODS[name], **changes.get(name, {})},
            changes_on=changes_on.get(name, {}),
            printed=by_column(columns, values),
            local_crops=LOCAL_CROPS.get(name, 0),
            small_settings=_small_settings(name, changed=name in changes),
        )
        for name, values in table.items()
    )


def _small_settings(name: str, *, changed: bool) -> Settings:
    """Return a method's settings on CIFAR-10, which replaces ImageNet; a method without such settings uses the study's."""
    if name in BASELINES:
        return {**BASELINES[name].small_settings, "epochs": SMALL_SCALE_IMAGENET["epochs"]}
    # Otherwise the row's own settings would override the study's settings for these scales.
    return SMALL_SCALE_IMAGENET if name == "SimCLR" or changed else {}


def detection_rows(
    columns: Sequence[str], table: Mapping[str, Sequence[float | None]], changes: Mapping[str, Settings]
) -> tuple[Row, ...]:
    """Return a row for each method in Table 7; some rows have further changes."""
    weights = {"scratch": "start", "supervised": "supervised"}
    rows = method_rows(columns, table, changes)
    return tuple(replace(row, measure_changes={"weights": weights.get(row.name, "")}) for row in rows)


# Claims about the six methods.
BEST_OF_ONE_POSITIVE = is_best(
    CACR_K1, (CL, AU_CL, HN_CL, CACR_K1), margin=0.05, of=" of the methods with one positive"
)
SIX_METHODS_CLAIMS = (
    is_above(CACR_K1, CL, margin=0.2),  # 0.26 on CIFAR-10 in Table 8
    BEST_OF_ONE_POSITIVE,
    is_above(CACR_K4, CMC, margin=0.3),
    is_best(CACR_K4, METHODS),
)
ACCURACY_AXIS = {"linear accuracy, %": ""}
