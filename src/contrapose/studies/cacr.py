"""Contrastive Attraction and Contrastive Repulsion (CACR): small sets, long tails, MoCo, and its own variants."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from contrapose.studies import behaviour
from contrapose.studies.claims import Claim, above, best, computed, moves, within
from contrapose.studies.results import Results
from contrapose.studies.shows import curves, over_epochs
from contrapose.studies.study import CIFAR10, On, Quantity, Row, Settings, Study
from contrapose.training import PRESETS

# Values that the data set decides: t⁻ with one positive and with four, and the class prior τ⁺ of HN-CL.
_VALUES = {
    "CIFAR-10": {"k1": 2.0, "k4": 0.9, "plus": 0.1},
    "CIFAR-100": {"k1": 3.0, "k4": 2.0, "plus": 0.05},
    "STL-10": {"k1": 3.0, "k4": 2.0, "plus": 0.1},
}


_CL, _AU, _HN, _CACR1, _CMC, _CACR4 = _ALL = ("CL", "AU-CL", "HN-CL", "CACR (K=1)", "CMC (K=4)", "CACR (K=4)")
_HARD = "hard_negative(temperature=0.5, beta=1.0, tau_plus={plus})"
_LOSSES = {_CL: "simclr(temperature=0.19)", _AU: "align_uniform", _HN: _HARD, _CACR1: "cacr(t_neg={k1})",
           _CMC: "cmc(temperature=0.19)", _CACR4: "cacr(t_neg={k4})"}  # fmt: skip
_SMALL_SETS: Mapping[str, Settings] = {name: {"loss": loss} for name, loss in _LOSSES.items()}
_RESNETS = {**_SMALL_SETS, _CL: {"loss": "simclr(temperature=0.5)"}, _CMC: {"loss": "cmc(temperature=0.5)"}}
# As in MoCo v2; CACR's own are those of the preset.
_QUEUE_ALONE: Settings = {"symmetric": False, "batch_negatives": False}
_MOCO: Mapping[str, Settings] = {
    _CL: {"loss": "simclr(temperature=0.2)", **_QUEUE_ALONE},
    _AU: {"loss": "align_uniform(align_weight=3.0, t=3.0)", "symmetric": False},
    _HN: {"loss": _HARD.format(plus=0.01), **_QUEUE_ALONE},
    _CACR1: {"loss": "cacr(t_neg=2.0)"},
    _CMC: {"loss": "cmc(temperature=0.07)", **_QUEUE_ALONE},
    _CACR4: {"loss": "cacr(t_neg=2.0)"},
}
_ONE: Settings = {}
_FOUR: Settings = {"view_count": 5, "batch": 128, "lr": 0.06}
_FIVE_VIEWS: Settings = {"view_count": 5}
_LINEAR, _SECONDS = (Quantity("", "linear:cacr"),), (Quantity("", "step_seconds", "s"),)
_LINEAR_IMAGENET = (Quantity("", "linear:cacr-imagenet"),)
_STL_RESNET = On("STL-10", "stl10", {"views": "align-uniform-stl"})
_CIFAR100 = On("CIFAR-100", "cifar100", {"views": "align-uniform-cifar100"})
_SETS = (CIFAR10, _CIFAR100, On("STL-10", "stl10", {"views": "align-uniform-stl", "encoder": "alexnet-64"}))
_SMALL: Settings = {"epochs": 50, "milestones": (39, 42, 46)}
_SMALL_IMAGENET: Settings = {
    "encoder": "resnet18-cifar", "views": "simclr-cifar", "head": "simclr", "batch": 128, "optimiser": "sgd", "lr": 0.06,
    "weight_decay": 5e-4, "warmup": 0.0, "schedule": "cosine", "epochs": 50, "queue": 4096, "momentum": 0.99,
}  # fmt: skip

# Tables 2, 3, 8, 9 and 15: a number for each of the six methods.
_TABLE8 = {"CIFAR-10": (83.47, 83.39, 83.67, 83.73, 85.54, 86.54), "CIFAR-100": (55.41, 55.31, 55.87, 56.52, 58.64, 59.41),
           "STL-10": (83.89, 84.43, 83.27, 84.51, 84.50, 85.59)}  # fmt: skip
_TABLE2 = {
    "CIFAR-10": _TABLE8["CIFAR-10"], "CIFAR-100": _TABLE8["CIFAR-100"],
    "CIFAR-10, linear": (79.88, 80.25, 80.51, 80.46, 82.20, 83.62),
    "CIFAR-100, linear": (52.29, 52.74, 52.72, 54.12, 55.38, 56.91),
    "CIFAR-10, exponential": (71.74, 71.62, 72.74, 73.02, 74.77, 75.89),
    "CIFAR-100, exponential": (43.29, 44.38, 45.13, 46.59, 48.87, 50.17),
}  # fmt: skip
_TABLE3 = {"CIFAR-10": (83.61, 83.57, 83.72, 83.86, 85.54, 86.54), "CIFAR-100": (55.41, 56.07, 55.80, 56.41, 58.64, 59.41),
           "STL-10": (83.49, 83.43, 82.41, 84.56, 84.50, 85.59)}  # fmt: skip
_TABLE9 = {"CIFAR-10": (88.70, 88.63, 89.02, 90.97, 90.05, 92.89), "CIFAR-100": (62.00, 62.57, 62.96, 62.98, 65.19, 66.52),
           "STL-10": (84.60, 83.81, 84.29, 88.42, 91.40, 93.04)}  # fmt: skip
_TABLE15 = {"ImageNet-100": (77.54, 77.66, 76.34, 79.40, 78.84, 80.46),
            "ImageNet-1K": (67.50, 67.69, 67.41, 68.40, 69.45, 70.35)}  # fmt: skip
# Tables 12 and 13: a number for each t⁺ or t⁻, on three data sets.
_TS = (0.5, 0.7, 0.9, 1.0, 2.0, 3.0)
_TABLE12 = {"CIFAR-10": (86.07, 85.78, 85.90, 86.54, 84.85, 84.76), "CIFAR-100": (59.47, 59.61, 59.41, 59.41, 57.82, 57.55),
            "STL-10": (85.90, 85.91, 85.81, 85.59, 85.65, 85.14)}  # fmt: skip
_TABLE13_K1 = {"CIFAR-10": (81.66, 82.40, 83.07, 82.74, 83.73, 83.11), "CIFAR-100": (51.42, 52.81, 53.36, 54.20, 56.21, 56.52),
               "STL-10": (80.37, 81.47, 84.46, 82.16, 84.21, 84.51)}  # fmt: skip
_TABLE13_K4 = {"CIFAR-10": (85.67, 86.19, 86.54, 86.41, 85.94, 85.69), "CIFAR-100": (58.17, 58.63, 59.37, 59.35, 59.41, 59.31),
               "STL-10": (83.81, 84.42, 84.71, 85.25, 85.59, 85.41)}  # fmt: skip
_TIMES = {1: 0.0021, 2: 0.0026, 4: 0.0035, 6: 0.0045, 8: 0.0054, 10: 0.0064}  # Table 14: seconds by K
_TABLE4 = {"Barlow Twins": (73.2,), "SimSiam": (71.3,), "SwAV": (71.8,), "SwAV (multi-crop)": (75.3,), "BYOL": (74.3,),
           "SimCLR": (71.7,), "MoCov2": (72.2,), "FNC (multi-crop)": (74.4,), _CACR1: (73.7,), _CACR4: (74.4,)}  # fmt: skip
_PRETRAINED = ("ImageNet-1K", "Webvision v1", "ImageNet-22K")
_TABLE5 = {"MoCov2": (67.5, 62.3, 59.9), _CACR1: (69.5, 64.5, 61.9), _CACR4: (70.4, 66.1, 64.5)}
_ELEVATER = ("Caltech101", "CIFAR10", "CIFAR100", "Country211", "DescriTextures", "EuroSAT", "FER2013", "FGVC Aircraft",
             "Food101", "GTSRB", "HatefulMemes", "KITTI", "MNIST", "Oxford Flowers", "Oxford Pets", "PatchCamelyon",
             "Rendered SST2", "RESISC45", "Stanford Cars", "VOC2007", "mean", "wins")  # fmt: skip
_TABLE6 = {
    "MoCov3, fine-tuned": (73.7, 70.3, 17.4, 2.3, 45.6, 60.0, 13.5, 7.2, 27.6, 16.5, 50.8, 43.5, 18.1, 65.7, 77.1, 50.9, 50.7,
                           58.2, 11.2, 25.7, 39.3, 4),
    "CACR, fine-tuned": (84.8, 67.6, 24.3, 2.5, 51.2, 73.6, 23.0, 21.4, 17.0, 23.7, 51.8, 45.4, 44.0, 81.1, 79.4, 58.4, 51.2,
                         49.1, 10.8, 69.0, 46.5, 16),
    "MoCov3, linear": (80.8, 78.5, 60.5, 4.8, 57.1, 77.1, 20.5, 11.8, 36.6, 31.4, 50.7, 46.7, 64.1, 79.5, 76.2, 54.7, 50.0,
                       61.1, 13.4, 47.9, 50.2, 4),
    "CACR, linear": (79.3, 85.4, 62.9, 4.7, 57.1, 76.1, 18.3, 21.6, 40.9, 32.9, 50.9, 50.3, 69.2, 84.6, 81.2, 56.9, 51.8,
                     61.7, 21.1, 74.4, 54.1, 15),
}  # fmt: skip
_PRECISIONS = tuple(f"{on} {ap}" for on in ("VOC", "COCO", "COCO mask") for ap in ("AP50", "AP", "AP75"))
_TABLE7 = {
    "scratch": (60.2, 33.8, 33.1, 44.0, 26.4, 27.8, 46.9, 29.3, 30.8),
    "supervised": (81.3, 53.5, 58.8, 58.2, 38.2, 41.2, 54.7, 33.3, 35.2),
    "BYOL": (81.4, 55.3, 61.1, 57.8, 37.9, 40.9, 54.3, 33.2, 35.0),
    "SwAV": (81.5, 55.4, 61.4, 57.6, 37.6, 40.3, 54.2, 33.1, 35.1),
    "SimSiam": (82.4, 57.0, 63.7, 59.3, 39.2, 42.1, 56.0, 34.4, 36.7),
    "Barlow Twins": (82.6, 56.8, 63.4, 59.0, 39.2, 42.5, 56.0, 34.3, 36.5),
    "SimCLR": (81.8, 55.5, 61.4, 57.7, 37.9, 40.9, 54.6, 33.3, 35.3),
    "MoCov2": (82.3, 57.0, 63.3, 58.8, 39.2, 42.5, 55.5, 34.3, 36.6),
    "AU-CL": (82.5, 57.2, 63.8, 58.4, 39.1, 42.2, 55.7, 34.1, 36.3),
    _CACR1: (82.8, 57.8, 64.2, 58.9, 39.3, 42.5, 55.6, 34.4, 36.7),
    _CACR4: (82.8, 57.9, 64.9, 59.8, 40.0, 42.7, 55.8, 35.0, 37.0),
}
_EPOCHS = (100, 200, 400, 800, 1000)
_TABLE16 = {
    "BYOL": (66.5, 70.6, 73.2, 74.3, None), "Barlow Twins": (None, None, None, None, 73.2),
    "SwAV": (66.5, 69.1, 70.7, 71.8, None), "SimSiam": (68.1, 70.0, 70.8, 71.3, None),
    "SimCLR": (66.5, 68.3, 69.8, 70.4, 71.7), "MoCov2": (67.4, 69.9, 71.0, 72.2, None),
    "FNC (multi-crop)": (70.4, None, None, None, 74.4), _CACR4: (68.3, 70.4, 73.8, 74.0, 74.4),
}  # fmt: skip
_TABLE17: tuple[tuple[str, str, int, int, float], ...] = (  # name, loss, views, batch, seconds
    (_CL, _CL, 2, 256, 0.837), (_AU, _AU, 2, 256, 0.840), (_HN, _HN, 2, 256, 0.889), (_CACR1, _CACR1, 2, 256, 0.871),
    ("CL (K=4)", _CMC, 5, 64, 3.550), ("CACR (K=2)", _CACR4, 3, 128, 0.996), ("CACR (K=3)", _CACR4, 4, 64, 1.017),
    (_CACR4, _CACR4, 5, 64, 1.342),
)  # fmt: skip
_ENCODERS = ("ResNet-50", "ViT-B/16")
_TABLE18 = {"SimCLRv2": (71.7, 73.9), "MoCov3": (73.8, 76.5), "CACR": (74.7, 76.8), "SwAV (multi-crop)": (75.3, 71.6),
            "CACR (multi-crop)": (75.3, 77.1)}  # fmt: skip
_VIT = {name: value for name, value in PRESETS["cacr/moco-v3-vit"].items() if name != "data"}
# The methods of Tables 4, 5, 16 and 18 that are built.
_BUILT: dict[str, Settings] = {
    "SimCLR": {"loss": "simclr(temperature=0.1)", "framework": "simclr", **_QUEUE_ALONE},
    "MoCov2": _MOCO[_CL],
    "MoCov3": {},  # the loss of its preset
    "CACR": {**_MOCO[_CACR4], **_FIVE_VIEWS},
    _CACR1: _MOCO[_CACR1],
    _CACR4: {**_MOCO[_CACR4], **_FIVE_VIEWS},
}
_Printed = Mapping[str, Sequence[float]]


def _thinned(on: On, rule: str) -> On:
    return On(f"{on.name}, {rule}", on.data, {**on.changes, "imbalance": f"cacr-{rule}"})


def _imagenet(name: str = "ImageNet-1K", data: str = "imagenet", **changes: Any) -> On:
    return On(name, data, {"stream": True, **changes})


def _numbers(names: Sequence[str], values: Sequence[float | None]) -> dict[str, float]:
    return {name: value for name, value in zip(names, values, strict=True) if value is not None}


def _six(
    printed: _Printed,
    methods: Mapping[str, Settings] = _SMALL_SETS,
    single: Settings = _ONE,
    four: Settings = _FOUR,
    small: Settings = _ONE,
) -> tuple[Row, ...]:
    """The six methods, with a printed number of each on every data set."""
    rows = []
    for place, (name, method) in enumerate(methods.items()):
        changes = {**method, **(four if "K=4" in name else single)}
        numbers = {on: values[place] for on, values in printed.items()}
        rows.append(Row(name, changes, numbers, small=_ONE if "K=4" in name else small))
    return tuple(rows)


def _sweep(name: str, loss: str, printed: _Printed, changes: Settings = _FOUR, series: str = "") -> tuple[Row, ...]:
    """A row for each t⁺ or t⁻; t⁺ = 1 is the default, and not said."""
    rows = []
    for place, t in enumerate(_TS):
        text = loss.replace("{t}", str(t)).replace("t_pos=1.0, ", "")
        numbers = {on: values[place] for on, values in printed.items()}
        rows.append(Row(f"{name} = {t:g}", {"loss": text, **changes}, numbers, t, series))
    return tuple(rows)


def _batch_rows() -> tuple[Row, ...]:
    """Figure 8: every method with every batch; the learning rate is 0.12 for 256 images."""
    rows = []
    for name, loss in _LOSSES.items():
        for batch in (64, 128, 256, 512, 768):
            changes = {
                "loss": loss,
                **(_FOUR if "K=4" in name else _ONE),
                "batch": batch,
                "lr": round(0.12 * batch / 256, 6),
            }
            rows.append(Row(f"{name}, M = {batch}", changes, {}, batch, name))
    return tuple(rows)


def _views_row(k: int, printed: Settings = _ONE) -> Row:
    """CACR with K positives, from K + 1 views."""
    return Row(f"K = {k}", {"loss": _LOSSES[_CACR4], **_FOUR, "view_count": k + 1}, printed, k)


def _variant(name: str, loss: str, *values: float, changes: Settings = _FOUR) -> Row:
    """A variant of the objective."""
    return Row(name, {"loss": loss, **changes}, _numbers(tuple(_TABLE8)[: len(values)], values))


def _rows(columns: Sequence[str], table: Mapping[str, Sequence[float | None]]) -> tuple[Row, ...]:
    """Methods by name: those that are not built keep their printed numbers."""
    return tuple(
        Row(name, _BUILT.get(name, {}), _numbers(columns, values), missing="" if name in _BUILT else f"{name} is not built")
        for name, values in table.items()
    )  # fmt: skip


def _ahead(row: str, measure: str, what: str) -> Claim:
    """The row's curve is above those of all other methods, at four of five recorded epochs on every data set."""

    def decide(results: Results) -> tuple[bool | None, str]:
        shares = {}
        for on in results.sets:
            mine, *others = (
                dict(results.curve(name, measure, on))
                for name in (row, *(n for n in _ALL if n != row and n in results.rows))
            )
            common = [epoch for epoch in mine if all(epoch in other for other in others)]
            if common and others:
                shares[on] = sum(all(mine[e] > other[e] for other in others) for e in common) / len(common)
        if not shares:
            return None, "no curves to compare"
        low, evidence = min(shares.values()), ", ".join(f"{on}: {100 * share:.0f} %" for on, share in shares.items())
        return True if low >= 0.8 else False if low <= 0.5 else None, f"highest at this share of epochs: {evidence}"

    return computed(f"{row} is ahead in {what} during training", decide)


def _drops_less(results: Results) -> tuple[bool | None, str]:
    """What CACR and CL lose on thinned-out classes."""
    gaps, evidence = [], []
    for on in results.sets:
        lost = [results.cell(row, "", on.split(",")[0]).mean - results.cell(row, "", on).mean for row in (_CACR4, _CL)]
        if "," in on and not any(math.isnan(x) for x in lost):
            gaps.append(lost[1] - lost[0])
            evidence.append(f"{on}: {_CACR4} loses {lost[0]:.2f}, {_CL} {lost[1]:.2f}")
    yes, no = bool(gaps) and all(gap > 0.3 for gap in gaps), any(gap < -0.3 for gap in gaps)
    return True if yes else False if no else None, "; ".join(evidence) or f"nothing of both {_CACR4} and {_CL}"


def _longer_is_better(results: Results) -> tuple[bool | None, str]:
    found = [results.cell(_CACR4, "", on).mean for on in results.sets]
    found = [value for value in found if not math.isnan(value)]
    evidence = ", ".join(f"{value:.2f}" for value in found) or "nothing"
    return (found == sorted(found) if len(found) > 2 else None), evidence


def _slower(slow: str, fast: str, most: float | None = None) -> Claim:
    """A step of one row takes longer than one of the other; or, with `most`, at most so many times as long."""

    def decide(results: Results) -> tuple[bool | None, str]:
        ratio = results.cell(slow, "").mean / results.cell(fast, "").mean
        if math.isnan(ratio):
            return None, "not timed"
        yes = ratio <= most if most is not None else True if ratio > 1.1 else False if ratio < 1 else None
        return yes, f"{ratio:.2f} times as long"

    times = f"at most {most:g} times as long as" if most is not None else "longer than"
    return computed(f"a step of {slow} takes {times} one of {fast}", decide)


def _entropy_study(name: str, title: str, *sets: On) -> Study:
    return Study(
        name, title, "H(X⁻|X) rises to its maximum; CACR (K=4) comes there first, and stays highest on imbalanced data.",
        "cacr/cifar10", _six({}), (Quantity("H", "conditional_entropy", ""),), sets,
        over_epochs("conditional_entropy", "H(X⁻|X), nats", limit=math.log(127), limit_name="ln(M - 1)"),
        (_ahead(_CACR4, "conditional_entropy", "H(X⁻|X)"), above(_CACR4, _CL, "H", margin=0.01)), _SMALL,
        "Measured with M = 128 and t⁻ = 2 for every method and data set, so that the curves can be compared; the paper has "
        "CACR's own, 3 on CIFAR-100.",
    )  # fmt: skip


_C, _M = "cacr/cifar10", "cacr/moco-imagenet"
_SIX_CLAIMS = (above(_CACR1, _CL, margin=0.3), above(_CACR4, _CMC, margin=0.3), best(_CACR4, _ALL))
_CHART = {"linear accuracy, %": ""}
_BY_K = [(float(k), f"K = {k}") for k in _TIMES]
_T_NEG = _sweep("K = 4, t⁻", "cacr(t_neg={t})", _TABLE13_K4, series="K = 4")
_WHOLE = "Ours is a whole step, augmentation and optimiser included, on other hardware. "
_LIST = next(study for study in behaviour.STUDIES if study.name == "behaviour/supplement-table3")

_STUDIES = (
    Study("cacr/figure1", "CL and CACR side by side", "A drawing.", schema=True),
    Study("cacr/figure2", "The CACR framework", "A drawing.", schema=True),
    _entropy_study("cacr/figure3", "Conditional entropy on CIFAR-10", CIFAR10, _thinned(CIFAR10, "linear")),
    _entropy_study("cacr/figure4", "Conditional entropy on CIFAR-100", _CIFAR100, _thinned(_CIFAR100, "linear")),
    _entropy_study(
        "cacr/figure5", "Conditional entropy with exponential imbalance",
        _thinned(CIFAR10, "exponential"), _thinned(_CIFAR100, "exponential"),
    ),
    Study(
        "cacr/figure6", "Weights of the positives and negatives of one query",
        "Distant positives and negatives of a related class weigh more.",
        missing="a picture of one batch's images and their weights is not built: runs keep numbers, not images",
    ),
    Study(
        "cacr/figure7", "t-SNE of one query at epochs 1, 20 and 200, CL and CACR",
        "Positives come closer and negatives are pushed away, more evenly with CACR.",
        missing="runs keep their newest checkpoints only, so the embeddings at epochs 1 and 20 are gone",
    ),
    Study(
        "cacr/figure8", "Linear accuracy against batch size",
        "CACR (K=4) is best at any batch; CACR (K=1) is a little below the baselines at 64.", _C, _batch_rows(), _LINEAR, _SETS,
        curves("images in a batch", _CHART, log_x=True),
        (
            above("CACR (K=4), M = 256", "CMC (K=4), M = 256", margin=0.3),
            above("CACR (K=4), M = 768", "CL, M = 768"),
            above("CL, M = 64", "CACR (K=1), M = 64", margin=0.3),
        ), _SMALL,
    ),
    Study(
        "cacr/figure9", "Linear accuracy against the number of positives", "Accuracy rises with K.", _C,
        tuple(_views_row(k) for k in _TIMES), _LINEAR, (CIFAR10, _CIFAR100), curves("K", _CHART),
        (moves(_BY_K, up=True, margin=0.5, what="accuracy"),), _SMALL,
        "Batches of 128 and the t⁻ of K = 4 for every K. The paper's ImageNet-1K panel (K from 1 to 4) is left out; "
        "cacr/table15 has K = 1 and 4.",
    ),
    Study(
        "cacr/figure10", "Accuracy during training", "At any epoch CACR is above the other methods.", _C, _six(_TABLE8),
        (*_LINEAR, Quantity("kNN", "knn_top1")), _SETS, over_epochs("knn_top1", "kNN accuracy, %"),
        (_ahead(_CACR4, "knn_top1", "kNN accuracy"), above(_CACR4, _CMC, margin=0.3)), _SMALL,
        "The paper trains a linear classifier every 10 epochs. Ours shows kNN accuracy during training, and linear at its end.",
    ),
    Study("cacr/table1", "CL methods and what they contrast", "A taxonomy.", schema=True),
    Study(
        "cacr/table2", "Linear accuracy after training on regular and imbalanced CIFAR",
        "CACR is best, and loses least on imbalanced data.", _C, _six(_TABLE2), _LINEAR,
        (CIFAR10, _CIFAR100, *(_thinned(on, rule) for rule in ("linear", "exponential") for on in (CIFAR10, _CIFAR100))),
        claims=(*_SIX_CLAIMS[:2], computed(f"{_CACR4} loses less than {_CL} on imbalanced data", _drops_less)), small=_SMALL,
        note="AU-CL on CIFAR-10 is 83.39 as in Table 8, which the printed drop needs; Table 2 has 83.49. CL's printed drops on "
        "CIFAR-100 (3.57 and 12.57) do not follow from its numbers: they are 3.12 and 12.12. The printed rules of imbalance are "
        "garbled; ours are those of the authors' code. The exponential one leaves class 0 of CIFAR-10 and the "
        "first 30 of CIFAR-100 without an image.",
    ),
    Study(
        "cacr/table3", "One positive with twice the epochs, against four positives",
        "With 400 epochs one positive is still below four positives with 200.", _C,
        _six(_TABLE3, single={"epochs": 400, "milestones": (310, 340, 370)}, small={"epochs": 100, "milestones": (78, 85, 92)}),
        _LINEAR, _SETS,
        claims=(above(_CACR4, _CACR1, margin=0.3), above(_CMC, _CL, margin=0.3)), small=_SMALL,
        note="At the small scale 100 against 50 epochs. Doubtful in print: CL on CIFAR-100 has the 55.41 of 200 epochs, "
        "and HN-CL on STL-10 (82.41) is below its 200 epochs (83.27).",
    ),
    Study(
        "cacr/table4", "Linear accuracy on ImageNet-1K beside other methods", "CACR is the best of the methods with negatives.",
        _M, _rows(_PRETRAINED[:1], _TABLE4), _LINEAR_IMAGENET, (_imagenet(epochs=1000),), small=_SMALL_IMAGENET,
        claims=tuple(above(_CACR4, worse, margin=0.3) for worse in ("MoCov2", "SimCLR", _CACR1)),
        note="All rows are MoCo v2, with 1000 epochs and batches of 256: the paper's §5.2 says so, its code has MoCo v3 for "
        "long runs. The paper takes MoCov2's number at 800 epochs, and SimCLR's with batches of 4096.",
    ),
    Study(
        "cacr/table5", "Linear accuracy on ImageNet-1K after training on curated and uncurated data",
        "CACR is above MoCov2, also on Webvision and ImageNet-22K.", _M, _rows(_PRETRAINED, _TABLE5), _LINEAR_IMAGENET,
        (_imagenet(),), claims=(above(_CACR1, "MoCov2", margin=0.3), above(_CACR4, _CACR1, margin=0.3)), small=_SMALL_IMAGENET,
        note="Only ImageNet-1K runs: a probe on other data than a run was trained on is not built. The paper has 62.3 "
        "and 59.9 (MoCov2), 64.5 and 61.9 (K=1), 66.1 and 64.5 (K=4) on Webvision and ImageNet-22K. K=1 is 69.5 here, 68.40 in "
        "Table 15.",
    ),
    Study(
        "cacr/table6", "Five-shot transfer to the 20 sets of ELEVATER", "CACR is above MoCov3 on three of four sets.",
        rows=tuple(Row(name, {}, _numbers(_ELEVATER, values)) for name, values in _TABLE6.items()),
        missing="ELEVATER's data sets and its automatic tuning are not built",
    ),
    Study(
        "cacr/table7", "Detection and segmentation on VOC and COCO", "CACR transfers best.",
        rows=tuple(Row(name, {}, _numbers(_PRECISIONS, values)) for name, values in _TABLE7.items()),
        missing="detectors are not built: Faster and Mask R-CNN need detectron2, VOC and COCO",
    ),
    Study(
        "cacr/table8", "Linear accuracy with AlexNet, 200 epochs", "CACR is best with one positive and with four.", _C,
        _six(_TABLE8), _LINEAR, _SETS, claims=_SIX_CLAIMS, small=_SMALL,
    ),
    Study(
        "cacr/table9", "Linear accuracy with ResNet-50, 400 epochs", "CACR is best, and more clearly than with AlexNet.",
        "cacr/resnet50-cifar10", _six(_TABLE9, _RESNETS, four={"view_count": 5, "batch": 128}), _LINEAR,
        (CIFAR10, _CIFAR100, _STL_RESNET), claims=_SIX_CLAIMS, small={"encoder": "resnet18-cifar", "epochs": 50},
        note="CL and CMC have the temperature 0.5 of Robinson et al., whose settings the paper follows here. At the small scale "
        "a ResNet-18 and 50 epochs.",
    ),
    Study(
        "cacr/table10", "Signs of the conditional distributions", "Both signs matter; that of π⁻ more.", _C,
        (
            _variant("as proposed", _LOSSES[_CACR4], 86.48),
            _variant("π⁺ reversed", "cacr(t_neg={k4}, attraction='reversed')", 83.91),
            _variant("π⁻ reversed", "cacr(t_neg={k4}, repulsion='reversed')", 79.46),
            _variant("both reversed", "cacr(t_neg={k4}, attraction='reversed', repulsion='reversed')", 74.91),
        ), _LINEAR,
        claims=(
            above("as proposed", "π⁺ reversed"),
            above("π⁺ reversed", "π⁻ reversed", margin=1.0),
            above("π⁻ reversed", "both reversed", margin=1.0),
        ), small=_SMALL, note="The paper does not give t⁻ here; 86.48 is nearest to 86.54, that of t⁻ = 0.9.",
    ),
    Study(
        "cacr/table11", "Without the conditional distributions", "π⁻ matters most; without both little is learned.", _C,
        (
            _variant("CACR", "cacr(t_neg=2.0)", 85.94, 59.51, 85.59),
            _variant("without π⁺", "cacr(t_neg=2.0, attraction='uniform')", 85.22, 58.74, 85.06),
            _variant("without π⁻", "cacr(t_neg=2.0, repulsion='uniform')", 78.49, 47.88, 72.94),
            _variant("UAUR", "uaur", 77.17, 44.24, 71.88),
        ), _LINEAR, _SETS,
        claims=(
            above("CACR", "without π⁺", margin=0.3),
            above("without π⁺", "without π⁻", margin=2.0),
            above("without π⁻", "UAUR"),
        ), small=_SMALL, note="t⁻ = 2: 85.94 is that cell of Table 13. CIFAR-100 is 59.51 here and 59.41 there.",
    ),
    Study(
        "cacr/table12", "Linear accuracy against t⁺, four positives", "Small t⁺ are good; large ones lose.", _C,
        _sweep("t⁺", "cacr(t_pos={t}, t_neg={k4})", _TABLE12), _LINEAR, _SETS, curves("t⁺", _CHART),
        (above("t⁺ = 1", "t⁺ = 3"), above("t⁺ = 0.5", "t⁺ = 3")), _SMALL,
        "On CIFAR-100 the paper marks 59.47 as best; 59.61 (t⁺ = 0.7) is more.",
    ),
    Study(
        "cacr/table13", "Linear accuracy against t⁻", "A small t⁻ loses, most with one positive; 0.9 to 2 is good.", _C,
        _sweep("K = 1, t⁻", "cacr(t_neg={t})", _TABLE13_K1, _ONE, "K = 1") + _T_NEG, _LINEAR, _SETS, curves("t⁻", _CHART),
        (
            above("K = 1, t⁻ = 2", "K = 1, t⁻ = 0.5", margin=1.0),
            above("K = 4, t⁻ = 0.9", "K = 4, t⁻ = 0.5", margin=0.3),
            within([row.name for row in _T_NEG], spread=2.0, what="accuracy with K = 4"),
        ), _SMALL,
    ),
    Study(
        "cacr/table14", "Seconds of a step against the number of positives", "Time grows slowly with K.", _C,
        tuple(_views_row(k, {"CIFAR-10": seconds}) for k, seconds in _TIMES.items()), _SECONDS, (CIFAR10,),
        curves("K", {"seconds of a step": ""}),
        (moves(_BY_K, up=True, margin=0.0, what="time of a step"), _slower("K = 10", "K = 1", most=5.5)), _SMALL,
        _WHOLE + "With K = 10 there are 5.5 times as many images as with K = 1.",
    ),
    Study(
        "cacr/table15", "Linear accuracy of MoCo v2 with six objectives, 200 epochs", "CACR is best with one positive and four.",
        _M, _six(_TABLE15, _MOCO, four=_FIVE_VIEWS), _LINEAR_IMAGENET,
        (_imagenet("ImageNet-100", "imagenet100", batch=128), _imagenet()), claims=_SIX_CLAIMS, small=_SMALL_IMAGENET,
        note="The text says +2.75 on ImageNet-1K; the numbers give 2.85.",
    ),
    Study(
        "cacr/table16", "Linear accuracy on ImageNet-1K after 100 to 1000 epochs", "CACR is ahead of most methods at any length.",
        _M, _rows([f"{e} epochs" for e in _EPOCHS], _TABLE16), _LINEAR_IMAGENET,
        tuple(_imagenet(f"{e} epochs", epochs=e) for e in _EPOCHS), small=_SMALL_IMAGENET,
        claims=(
            above(_CACR4, "MoCov2", margin=0.3),
            above(_CACR4, "SimCLR", margin=0.3),
            computed(f"{_CACR4} gains with more epochs", _longer_is_better),
        ),
        note="All lengths are MoCo v2's; the authors' code has MoCo v3 for the long ones. "
        "SimCLR runs with batches of 256, not 4096. MoCov2 at 200 epochs is 69.9 here and 67.5 in Tables 5 and 15.",
    ),
    Study(
        "cacr/table17", "Seconds of a step with MoCo v2", "Four positives cost CACR little, and CL much.", _M,
        tuple(
            Row(name, {**_MOCO[method], "view_count": views, "batch": batch}, {"ImageNet-1K": seconds})
            for name, method, views, batch, seconds in _TABLE17
        ), _SECONDS, (_imagenet(epochs=3),), small={**_SMALL_IMAGENET, "epochs": 3}, note=_WHOLE,
        claims=(_slower("CL (K=4)", _CACR4), _slower(_CACR4, _CACR1, most=2.0)),
    ),
    Study(
        "cacr/table18", "Linear accuracy of ResNet-50 and ViT-B/16 on ImageNet-1K", "CACR is above MoCov3 with both encoders.",
        "cacr/moco-v3-resnet50", _rows(_ENCODERS, _TABLE18), (Quantity("", "linear:moco-v3"),),
        (_imagenet("ResNet-50", epochs=800), _imagenet("ViT-B/16", **_VIT)), small=_SMALL_IMAGENET,
        claims=(above("CACR", "MoCov3", margin=0.3),),
        note="CACR is its own formula with four positives; the authors' MoCo v3 code weighs InfoNCE instead. Fine-tuning is left "
        "out; the paper has 77.2, 77.0, 78.1, 77.8, 78.4 with ResNet-50 and 83.1, 83.2, 83.4, 82.8, 83.4 with ViT, in row order. "
        "CACR with ResNet-50 is 74.7 here and 74.4 in Table 4. The ViT is torchvision's, its patches and "
        "positions learned, and its probe has the ResNet's learning rate.",
    ),
    Study(
        "cacr/table19", "Zero-shot accuracy on ImageNet-1K after image-text training", "CACR is above CLIP.",
        rows=tuple(Row(n, {}, {"ImageNet-1K": v}) for n, v in (("CLIP", 19.8), ("CLIP, reproduced", 19.2), ("CACR", 22.7))),
        missing="training on image-text pairs is not built: it needs CC3M and a text encoder",
    ),
    Study(
        "cacr/table20", "Euclidean and RBF cost", "Both costs do about as well.", _C,
        (
            _variant("K = 1, Euclidean", "cacr(t_neg=2.0)", 83.73, 56.21, 83.55, changes=_ONE),
            _variant("K = 1, RBF", "cacr_rbf(t_neg=2.0)", 83.08, 55.90, 84.20, changes=_ONE),
            _variant("K = 4, Euclidean", "cacr(t_neg=2.0)", 85.94, 59.41, 85.59),
            _variant("K = 4, RBF", "cacr_rbf(t_neg=2.0)", 86.20, 58.81, 85.80),
        ), _LINEAR, _SETS,
        claims=tuple(within((f"{k}, Euclidean", f"{k}, RBF"), spread=1.0, what=k) for k in ("K = 1", "K = 4")), small=_SMALL,
        note="t⁻ = 2: on CIFAR the numbers are those cells of Table 13. On STL-10 with K = 1 they differ (83.55 and 84.21).",
    ),
    replace(_LIST, name="cacr/table21"),
)  # fmt: skip

STUDIES = tuple(replace(study, values=_VALUES) for study in _STUDIES)
