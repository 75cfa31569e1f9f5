"""Manna et al., Dynamically Scaled Temperature in Self-Supervised Contrastive Learning (DySTreSS)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from contrapose.explanation import Subject, ode_curves
from contrapose.report.document import Block, Chart, Heat, Series, points
from contrapose.studies.claims import FAILS, HOLDS, Claim, above, best, compared, computed, shown, within
from contrapose.studies.results import Results, column
from contrapose.studies.shows import curves, grid, table
from contrapose.studies.study import CIFAR10, CIFAR100, On, Quantity, Row, Settings, Show, Study
from contrapose.training import PRESETS


def _cosine(low: float, high: float, shift: float | None = None) -> str:
    """The loss of a temperature range. ImageNet's runs always spell it out: their data is a path, not a name."""
    more = "" if shift is None else f", shift={shift:g}"
    return f"dystress(temperature=cosine({low:g}, {high:g}{more}))"


# What runs. A method of a table that is not here is not built.
_MOCO: Settings = {
    "loss": "nt_xent(temperature=0.1)", "framework": "moco", "head": "moco-v2", "queue": 4096, "momentum": 0.99,
    "norm_splits": 8, "symmetric": True,
}  # fmt: skip
_CIFAR: Mapping[str, Settings] = {
    "SimCLR": {"loss": "simclr"}, "MoCo v2": _MOCO, "DCL": {"loss": "dcl"}, "DCLW": {"loss": "dclw"},
    "DCL (old form)": {"loss": "dcl(split_views=True)"}, "MACL": {"loss": "macl"}, "DySTreSS": {"loss": "dystress"},
    "DySTreSS*": {"loss": _cosine(0.1, 0.2)},
    "Kukleva et al.": {"loss": "temperature_schedule"}, "cosine": {"loss": "dystress"},
    "linear": {"loss": "nt_xent(temperature=linear(0.07, 0.2))"},
    "exponential": {"loss": "nt_xent(temperature=exponential(0.07, 0.2))"},
    "monotonic cosine": {"loss": "nt_xent(temperature=monotonic_cosine(0.07, 0.2))"},
}  # fmt: skip
_IMAGENET: Mapping[str, Settings] = {
    "SimCLR": {"loss": "simclr(temperature=0.1)"}, "DCL": {"loss": "dcl"}, "DCLW": {"loss": "dclw"},
    "MACL": {"loss": "macl"}, "DySTreSS": {"loss": _cosine(0.1, 0.2)}, "DySTreSS*": {"loss": _cosine(0.1, 0.2, -0.4)},
    "DySTreSS (2048)": {"loss": _cosine(0.1, 0.2)}, "DySTreSS + DCL": {"loss": "dystress_dcl"},
    "Kukleva et al.": {"loss": "temperature_schedule"},
}  # fmt: skip

_C10, _I100 = "dystress/cifar10", "dystress/imagenet100"
_BOTH = (CIFAR10, CIFAR100)
_IN100, _IN1K = (
    (On("ImageNet-100", "imagenet100", {"stream": True}),),
    (On("ImageNet-1K", "imagenet", {"stream": True}),),
)
_IN100_LT = (On("ImageNet-100-LT", "imagenet100-lt", {"stream": True}),)
_TAIL = "exponential:100"
_LT = tuple(On(f"{on.name}-LT", on.data, {"imbalance": _TAIL}) for on in _BOTH)
_WIKI = (On("Wiki1M", "wiki1m"),)

_KNN, _ACCURACY = (Quantity("", "knn_top1"),), Quantity("accuracy", "knn_top1")
_LINEAR = (Quantity("top-1", "linear:dystress-imagenet"), Quantity("top-5", "linear_top5:dystress-imagenet"))
_TWENTY = (Quantity("20-NN top-1", "knn:20:softmax"), Quantity("20-NN top-5", "knn_top5:20:softmax"))
_FOUR = (*_TWENTY, *(replace(quantity, name=f"linear {quantity.name}") for quantity in _LINEAR))
_NEAREST = (Quantity("1-NN", "knn:1:uniform"), Quantity("10-NN", "knn:10:uniform"))
_KUKLEVA = (*_NEAREST, Quantity("few-shot", "few_shot"), Quantity("long-tail", "long_tail"))
_SPREAD = (Quantity("-U", "-uniformity", ""), Quantity("T", "tolerance", ""))
_INTERCLASS = Quantity("inter-class U", "interclass_uniformity_whole", "")
_WHOLE = (Quantity("U", "uniformity_whole", ""), Quantity("A", "alignment_class_whole", ""), _INTERCLASS)
_FIGURE5 = (_TWENTY[0], *_SPREAD, _INTERCLASS)
_TASKS = tuple(
    Quantity(name, f"transfer:{name}")
    for name in ("MURA", "Chaoyang", "ISIC2016", "MHIST", "CIFAR-10", "CIFAR-100", "Flowers")
)
_TEXTS = "STS12 STS13 STS14 STS15 STS16 STS-B SICK-R STS-average MR CR SUBJ MPQA SST2 TREC MRPC transfer-average"
_SENTENCES = tuple(Quantity(name, f"sentences:{name}", "") for name in _TEXTS.split())

_SMALL: Settings = {"epochs": 50}
# In place of ImageNet, CIFAR-10 with CIFAR's settings: these runs and those of _SMALL are the same.
_LIKE_CIFAR = {key: value for key, value in PRESETS[_C10].items() if key not in ("data", "loss")}
_SMALL_IMAGENET: Settings = {**_LIKE_CIFAR, **_SMALL, "head": "simclr"}
_SMALL_LT: Settings = {"epochs": 200}  # a quarter of CIFAR-10's images: as long as 50 epochs of all
_SMALL_KUKLEVA: Settings = {"epochs": 400}  # one period of the schedule


def _rows(
    methods: Mapping[str, Settings], quantities: Sequence[Quantity], sets: Sequence[On], printed: Mapping[str, str]
) -> tuple[Row, ...]:
    """A row for each method; its numbers go set by set, and within a set quantity by quantity; "-" is none."""
    names = [column(quantity.name, on.name) for on in sets for quantity in quantities]
    rows = []
    for method, line in printed.items():
        found = {name: float(n) for name, n in zip(names, line.split(), strict=True) if n != "-"}
        missing = "" if method in methods else f"{method.split(' (')[0]} is not built"
        rows.append(Row(method, methods.get(method, {}), found, missing=missing))
    return tuple(rows)


_TABLE1 = _rows(_IMAGENET, _LINEAR, _IN100, {
    "SimCLR": "75.54 93.06", "DCL": "77.38 94.01", "BYOL": "75.02 93.42", "Barlow Twins": "75.88 93.96",
    "VICReg": "76.36 94.14", "MACL": "78.28 94.25", "DySTreSS": "78.78 94.70", "DySTreSS*": "78.82 94.76",
})  # fmt: skip
_TABLE2 = _rows(_IMAGENET, _LINEAR, _IN1K, {
    "SimCLR": "63.2 85.2", "DCL": "65.1 86.2", "DCLW": "64.2 86.0", "BYOL": "62.4 82.7", "Barlow Twins": "62.9 84.3",
    "VICReg": "63.0 85.4", "MACL": "64.3 -", "DySTreSS": "65.21 86.55",
})  # fmt: skip
_TABLE3 = _rows(_CIFAR, _KNN, _BOTH, {
    "SimCLR": "83.65 52.32", "MoCo v2": "83.9 54.01", "DCL (old form)": "84.4 56.02", "MACL": "84.85 56.15",
    "DySTreSS": "85.68 56.57",
})  # fmt: skip
_TABLE4 = _rows(_CIFAR, _KUKLEVA, _LT, {
    "Kukleva et al.": "62.91 - - - 30.20 - - -", "DySTreSS": "64.98 - - - 31.71 - - -",
})  # fmt: skip
_TABLE6 = {"SimCLR": "57.12 55.29", "DySTreSS": "58.36 56.40", "DySTreSS*": "58.34 56.54"}
_TABLE7 = {"SimCLR": "28.27 26.18", "DySTreSS": "29.43 27.10", "DySTreSS*": "28.82 27.32"}
_TABLE8 = _rows(_IMAGENET, _LINEAR, _IN100, {
    "Barlow Twins (2048)": "78.62 94.72", "VICReg (2048)": "79.22 95.06", "ZeroICL (256)": "78.02 95.61",
    "ZeroFCL (2048)": "79.32 94.94", "ZeroCL (2048)": "79.26 94.98", "W-MSE (256)": "69.06 91.22", "ARB (2048)": "79.48 95.51",
    "DINO (256)": "74.84 92.92", "BYOL (4096)": "80.09 94.99", "DySTreSS (2048)": "81.24 95.64",
})  # fmt: skip
_TABLE9 = _rows(_CIFAR, _KNN, _BOTH, {"DINO": "84.02 46.79", "W-MSE": "85.52 52.72", "DySTreSS": "85.68 56.57"})
_TABLE10 = {"cosine": "85.85 56.57", "linear": "85.74 56.78", "exponential": "85.81 56.47"}
_TABLE16 = {"cosine": "85.85 56.57", "monotonic cosine": "85.84 56.21"}
_TABLE11 = {
    "SimCLR": "81.81 83.22 85.49 83.62 96.93 82.99 93.82", "DCL": "81.70 83.12 86.02 85.26 97.09 83.03 94.11",
    "DySTreSS": "82.27 83.26 85.75 83.98 97.14 83.96 96.76", "supervised": "82.10 83.50 85.50 86.90 97.50 86.40 97.60",
}  # fmt: skip
_TABLE12 = {  # range, Δs
    "SimCSE": "65.10 80.32 71.42 80.51 77.80 76.47 70.69 74.62 80.42 85.80 94.13 88.66 85.17 87.40 72.29 84.84",
    "MACL": "67.49 81.55 73.21 80.97 77.52 76.54 70.87 75.45 80.50 85.41 94.20 89.22 85.06 90.40 75.59 85.77",
    "0.03–0.05": "68.00 81.58 73.44 80.33 77.65 76.24 70.98 75.46 81.30 87.10 94.79 89.15 86.16 88.20 72.35 85.58",
    "0.03–0.05, -0.2": "70.19 81.61 73.89 81.91 77.36 77.06 70.01 76.00 81.72 86.76 94.34 88.31 86.33 88.00 73.74 85.60",
    "0.03–0.05, -0.4": "69.34 81.76 73.51 81.61 77.39 76.67 71.53 75.96 81.69 87.28 94.80 89.29 85.83 91.20 72.93 86.15",
    "0.03–0.05, -0.6": "69.65 79.18 72.37 80.79 76.83 75.59 71.43 75.12 81.62 86.68 94.74 88.75 86.71 90.40 75.30 86.31",
    "0.02–0.05, -0.4": "69.17 81.69 73.73 81.38 77.75 76.19 70.98 75.84 81.59 86.99 94.45 89.48 86.66 87.80 74.90 85.98",
    "0.05–0.07, -0.4": "69.02 80.61 73.81 81.39 79.75 77.97 72.05 76.37 80.69 85.94 94.27 89.16 84.84 89.20 74.61 85.53",
    "0.04–0.05, -0.4": "69.68 80.33 74.27 80.55 76.89 75.95 70.82 75.50 81.02 86.23 94.97 88.86 85.17 89.80 73.22 85.61",
}
_TABLE13 = {
    "SimCLR": "-2.2135 1.5784 -0.5194 83.65 -2.2556 1.4661 -0.5246 52.32",
    "MoCo v2": "-2.1929 1.47393 -0.5094 83.67 -2.2202 1.4444 -0.5364 54.01",
    "DCLW": "-2.5482 1.5632 -0.5349 84.02 -2.6865 1.5425 -0.6405 55.87",
    "DCL": "-2.7717 1.6181 -0.5524 84.47 -2.8314 1.5723 -0.6792 56.02",
    "DySTreSS": "-2.8430 1.6310 -0.5797 85.83 -2.8169 1.5408 -0.7657 56.72",
}
_TABLE13_IN1K = {
    "SimCLR": "-2.9084 1.5253 -0.8739 63.2", "DCLW": "-3.0137 1.5295 -0.9544 64.2",
    "DCL": "-3.0786 1.5335 -1.0053 65.1", "DySTreSS": "-3.0596 1.5278 -1.0015 65.2",
}  # fmt: skip
_RANGED: Mapping[str, Settings] = {
    "0.07–0.1": {"loss": _cosine(0.07, 0.1)}, "0.07–0.5": {"loss": _cosine(0.07, 0.5)},
    "0.07–0.2": {"loss": _cosine(0.07, 0.2)}, "0.1–0.2": {"loss": _cosine(0.1, 0.2)},
}  # fmt: skip
_TABLE14 = _rows(_RANGED, _FOUR, _IN100, {
    "0.07–0.1": "67.18 87.82 77.28 94.16", "0.07–0.5": "67.88 88.22 76.34 93.72",
    "0.07–0.2": "71.46 89.42 78.46 94.4", "0.1–0.2": "72.00 89.76 78.76 94.7",
})  # fmt: skip
_FIGURE5_ROWS = _rows(_RANGED, _FIGURE5, _IN100, {
    "0.07–0.1": "- - - -0.6584", "0.07–0.5": "- - - -0.7202", "0.07–0.2": "- - - -0.7422", "0.1–0.2": "- - - -0.7710",
})  # fmt: skip
_SHIFTED = {f"Δs = {shift:g}": {"loss": _cosine(0.1, 0.2, shift)} for shift in (0, 0.2, 0.4, -0.2, -0.4)}
_TABLE15 = _rows(_SHIFTED, _FOUR, _IN100, {
    "Δs = 0": "71.66 90.16 78.46 94.86", "Δs = 0.2": "71.58 89.14 78.56 94.38", "Δs = 0.4": "71.58 89.58 78.46 94.54",
    "Δs = -0.2": "72.38 89.99 78.78 94.59", "Δs = -0.4": "71.58 90.16 78.82 94.76",
})  # fmt: skip

# Figures 3 and 6: the ranges that the text and the tables name, and (0.1, 0.5).
_RANGES = ((0.07, 0.1), (0.07, 0.2), (0.07, 0.5), (0.1, 0.2), (0.1, 0.5), (0.2, 0.2), (0.2, 0.5))
_BY_RANGE = {f"{low:g}–{high:g}": _cosine(low, high) for low, high in _RANGES}
_RANGE_ROWS = tuple(
    Row(name, {"loss": "dystress" if at == (0.07, 0.2) else loss}, x=at)
    for at, (name, loss) in zip(_RANGES, _BY_RANGE.items(), strict=True)
)
# Figures 4 and 7: Δs, and where the function is lowest.
_SHIFTS: Mapping[str, tuple[float | None, float]] = {
    "SMv3": (0.0, -0.5), "SMv2a": (-0.2, -0.4), "SMv2b": (-0.4, -0.3), "vanilla": (None, 0.0), "SMv1b": (0.4, 0.3),
    "SMv1a": (0.2, 0.4),
}  # fmt: skip
_BY_SHIFT = {name: _cosine(0.1, 0.2, shift) for name, (shift, _) in _SHIFTS.items()}
_SHIFT_ROWS = tuple(
    Row(name, {"loss": "dystress" if shift is None else _cosine(0.07, 0.2, shift)}, x=lowest)
    for name, (shift, lowest) in _SHIFTS.items()
)
_RATE_ROWS = tuple(
    Row(f"lr = {lr:g}", {"loss": "dystress", "lr": lr}, x=lr) for lr in (0.015, 0.03, 0.06, 0.12, 0.25, 0.5)
)


def _names(rows: Sequence[Row]) -> list[str]:
    return [row.name for row in rows]


def _there(on: str, better: str, worse: str, quantity: str, margin: float) -> Claim:
    """As `above`, on one data set only."""

    def decide(results: Results) -> tuple[bool | None, str]:
        a, b = results.cell(better, quantity, on), results.cell(worse, quantity, on)
        return {HOLDS: True, FAILS: False}.get(compared(a, b, margin)), f"{shown(a)} against {shown(b)}"

    return computed(f"{better} is above {worse} in {quantity} on {on} (margin {margin:g})", decide)


def _above_printed(row: str, rows: Sequence[Row], quantity: str, scales: Sequence[str]) -> Claim:
    """Our row is above what is printed of methods that are not built, at the scales that have the paper's settings."""

    def decide(results: Results) -> tuple[bool | None, str]:
        found = []
        for on in results.sets if results.scale in scales else ():
            ours, name = results.cell(row, quantity, on), column(quantity, on)
            theirs = max((other.printed.get(name, -math.inf), other.name) for other in rows if other.missing)
            found += [(ours, *theirs)] if ours.values and math.isfinite(theirs[0]) else []
        evidence = "; ".join(f"{shown(ours)} against {name}, printed {number:g}" for ours, number, name in found)
        return all(
            ours.mean > number for ours, number, _ in found
        ) if found else None, evidence or "the others are not built"

    return computed(f"{row} is above the printed numbers of the others", decide)  # fmt: skip


def _figure1(study: Study, results: Results) -> list[Block]:
    """Densities of similarity, before and after each row's first run."""
    made: list[Block] = []
    kinds = {"two views": "true_positive", "one class": "false_negative", "two classes": "true_negative"}
    for row in study.rows:
        for when, drawn in _histograms(results, row.name)[:2]:
            x = tuple((a + b) / 2 for a, b in pairwise(drawn["edges"]))
            series = tuple(Series(name, x, tuple(drawn[kind])) for name, kind in kinds.items())
            made.append(Chart(f"{row.name}, {when} of training", "cosine similarity", "density", series))
    return made + table(study, results)


def _histograms(results: Results, row: str) -> list[tuple[str, Mapping[str, list[float]]]]:
    """Of each seed at the start and at the end."""
    found = results.evaluations.get((row, results.sets[0]), ()) if results.sets else ()
    return [(when, one["histograms"][when]) for one in found if "histograms" in one for when in ("start", "end")]


def _in_order(results: Results) -> tuple[bool | None, str]:
    means = [(when, one["means"]) for row in ("SimCLR", "DySTreSS") for when, one in _histograms(results, row)]
    evidence = "; ".join(f"{when} {tp:.3f}, {fn:.3f}, {tn:.3f}" for when, (tp, fn, tn) in means)
    right = [tp > fn > tn for when, (tp, fn, tn) in means if when == "end"]
    return all(right) if right else None, evidence or "not run"


_WITHIN, _BEYOND, _HIGH = (0.1, 0.5, 0.9), (1.5, 3.0, 10.0), 0.2
_S = torch.linspace(-1, 1, 401, dtype=torch.float64)


def _solutions(title: str, highs: Sequence[float], shares: Sequence[float]) -> Chart:
    """Both sides for each τ(±1), at the same values of δK: `shares` are multiples of the bound at τ = 0.2."""
    series = []
    for high in highs:
        factor = math.exp(1 / high - 1 / _HIGH) * high / _HIGH
        for name, s, tau in ode_curves(high, tuple(factor * share for share in shares)):
            side = "s < 0" if float(s[0]) < 0 else "s > 0"
            series.append(Series(f"τ(±1) = {high:g}, {name}, {side}", tuple(s.tolist()), tuple(tau.tolist())))
    return Chart(title, "cosine similarity", "temperature", tuple(series))


def _figure2(study: Study, results: Results) -> list[Block]:
    """Solutions by δK, below and beyond the bound; and by the constant, which decides τ(±1)."""
    return [
        _solutions("δK below e^(-1/τ)/τ", (_HIGH,), _WITHIN),
        _solutions("δK above e^(-1/τ)/τ", (_HIGH,), _BEYOND),
        _solutions("Different constants of integration", (0.2, 0.3, 0.5), (0.5,)),
    ]


def _as_proposed(shares: tuple[float, ...]) -> Claim:
    """Whether every solution falls on the left and rises on the right, at these multiples of the bound of δK."""

    def decide(results: Results) -> tuple[bool, str]:
        wrong = []
        for name, s, tau in ode_curves(_HIGH, shares):
            against = s[1:][tau.diff() / s.diff() * s[1:] <= 0]
            if len(against):
                wrong.append(f"{name}: against it from s = {float(against.min()):.2f} to {float(against.max()):.2f}")
        return not wrong, "; ".join(wrong) or f"{len(shares)} values of δK, both sides"

    span = f"δK from {min(shares):g} to {max(shares):g} times e^(-1/τ)/τ"
    return computed(f"solutions fall for s < 0 and rise for s > 0, {span}", decide)


def _profile(loss: str) -> Tensor:
    tau = Subject.of(loss).nominal_temperature(_S)
    assert tau is not None
    return tau


def _profiles(losses: Mapping[str, str]) -> Show:
    def show(study: Study, results: Results) -> list[Block]:
        s = tuple(_S.tolist())
        series = tuple(Series(name, s, tuple(_profile(loss).tolist())) for name, loss in losses.items())
        return [Chart(study.title, "cosine similarity", "temperature", series)]

    return show


def _fall_and_rise(results: Results) -> tuple[bool, str]:
    slopes = [_profile(_cosine(low, high)).diff() for low, high in _RANGES if low < high]
    return all(bool((d[:200] < 0).all() and (d[200:] > 0).all()) for d in slopes), f"{len(slopes)} ranges"


def _high_at_ends(results: Results) -> tuple[bool, str]:
    ends = [float(_profile(loss)[end]) for loss in _BY_SHIFT.values() for end in (0, -1)]
    return all(abs(tau - 0.2) < 1e-9 for tau in ends), f"from {min(ends):.4f} to {max(ends):.4f}"


def _moved(results: Results) -> tuple[bool, str]:
    found = {name: float(_S[_profile(loss).argmin()]) for name, loss in _BY_SHIFT.items()}
    right = all((s > 0) == name.startswith("SMv1") for name, s in found.items())
    return right, ", ".join(f"{name} {s:+.2f}" for name, s in found.items())


def _figure5(study: Study, results: Results) -> list[Block]:
    """Uniformity and tolerance against accuracy, a mark for each range."""
    made: list[Block] = []
    for quantity in _FIGURE5[1:]:
        series = []
        for row in study.rows:
            pairs = [[results.cell(row.name, q.name, on).mean for q in (_FIGURE5[0], quantity)] for on in results.sets]
            series.append(points(row.name, [(x, y) for x, y in pairs if not math.isnan(x + y)], points=True))
        made.append(Chart(study.title, "20-NN accuracy, %", quantity.name, tuple(s for s in series if s.x)))
    return made + table(study, results)


def _figure6(study: Study, results: Results) -> list[Block]:
    """A picture for each quantity, then one table."""
    made: list[Block] = []
    for quantity in study.quantities:
        drawn = grid("τ_min", "τ_max", quantity.name)(study, results)
        made += [replace(block, title=f"{quantity.name}: {block.title}") for block in drawn if isinstance(block, Heat)]
    return made + table(study, results)


def _unmoved(results: Results) -> tuple[bool | None, str]:
    low, high = (results.cell(f"lr = {lr}", "accuracy", "CIFAR-100") for lr in (0.06, 0.5))
    return (low.mean - high.mean < 0.5 if low.values and high.values else None), f"{shown(low)} against {shown(high)}"


_OLD_DCL = "The printed DCL numbers are of lightly's old form, dcl(split_views=True), which repels twice as much."
_NOISE = "DySTreSS on CIFAR-10 is 85.68, 85.83 or 85.85 in different tables of the paper: noise of ±0.2."
_OURS = "Ours are of the projector's output; the paper's of the encoder's."

STUDIES = (
    Study(
        "dystress/figure1", "Similarities of positives, false and true negatives",
        "After training positives are above false negatives, and those above true negatives.", _C10,
        tuple(Row(name, _CIFAR[name]) for name in ("SimCLR", "DySTreSS")),
        (Quantity("histograms", "histograms", ""), _ACCURACY), show=_figure1,
        claims=(computed("after training: two views above one class above two classes, in the mean", _in_order),),
        note="The small scale keeps 200 epochs: the runs are Table 3's.",
    ),
    Study(
        "dystress/figure2", "Solutions of the differential equation for τ(s)",
        "The temperature falls on the left half and rises on the right half.", show=_figure2,
        claims=(_as_proposed(_WITHIN), _as_proposed((*_WITHIN, *_BEYOND))),
        note="The left half falls only while δK < e^(-1/τ)/τ at τ = τ_max (0.034 at 0.2); beyond that it first rises "
             "from s = -1. The sign of c⁺ in Equation 15 is corrected.",
    ),
    Study(
        "dystress/figure3", "Temperature functions for different ranges",
        "The cosine is lowest at s = 0 and highest at both ends.", show=_profiles(_BY_RANGE),
        claims=(computed("τ(s) falls for s < 0 and rises for s > 0", _fall_and_rise),),
        note="The paper does not list all of its ranges. s/τ(s) rises everywhere only if τ_min/(τ_max - τ_min) > π/4 - ½, which "
             "0.07–0.5 and 0.1–0.5 do not fulfil.",
    ),
    Study(
        "dystress/figure4", "Shifted temperature functions", "The minimum moves left or right, and both ends keep τ_max.",
        show=_profiles(_BY_SHIFT),
        claims=(computed("τ(±1) = τ_max for every shift", _high_at_ends),
                computed("version 1 has its minimum on the right, versions 2 and 3 on the left", _moved)),
        note="Δs is not how far the minimum moves: it stands at (1 - |Δs|)/2 on Δs's side, further left at -0.2 than at -0.4. "
             "At Δs = 0 the printed condition holds for every s; the left half is meant.",
    ),
    Study(
        "dystress/figure5", "Uniformity and tolerance against 20-NN accuracy",
        "The ranges that do best have high tolerance and low inter-class uniformity.", _I100, _FIGURE5_ROWS, _FIGURE5, _IN100,
        _figure5,
        (
            above("0.07–0.1", "0.1–0.2", "inter-class U", margin=0.01),
            above("0.07–0.5", "0.1–0.2", "inter-class U", margin=0.01),
            above("0.07–0.1", "0.07–0.5", "T", margin=0.01),
        ), _SMALL_IMAGENET,
        f"The paper says that a low temperature gives high tolerance; Wang & Liu find the opposite. {_OURS}",
    ),
    Study(
        "dystress/figure6", "Accuracy, uniformity and tolerance for temperature ranges",
        "0.07–0.2 is best; higher temperatures are less uniform and more tolerant.", _C10, _RANGE_ROWS, (_ACCURACY, *_SPREAD),
        _BOTH, _figure6,
        (
            best("0.07–0.2", _names(_RANGE_ROWS), "accuracy"),
            above("0.07–0.2", "0.2–0.5", "-U", margin=0.05),
            above("0.2–0.5", "0.07–0.2", "T", margin=0.02),
            _there("CIFAR-100", "0.07–0.2", "0.07–0.5", "accuracy", 0.3),
        ), _SMALL, f"The paper does not list all of its ranges: Figure 3's are taken. {_OURS}",
    ),
    Study(
        "dystress/figure7", "Accuracy, uniformity and tolerance for shifted minima",
        "No shifted minimum is better than s = 0; a minimum on the left is more uniform and less tolerant.", _C10, _SHIFT_ROWS,
        (_ACCURACY, *_SPREAD), _BOTH,
        curves("s at which τ is lowest", {"200-NN accuracy, %": "accuracy", "-U": "-U", "tolerance": "T"}),
        (
            best("vanilla", _names(_SHIFT_ROWS), "accuracy"),
            above("SMv2b", "SMv1b", "-U", margin=0.02),
            above("SMv1b", "SMv2b", "T", margin=0.01),
            _there("CIFAR-10", "SMv2a", "SMv2b", "accuracy", 0.2),
        ), _SMALL, f"Versions a and b have |Δs| = 0.2 and 0.4; see Figure 4 for where their minima are. {_OURS}",
    ),
    Study(
        "dystress/figure8", "Accuracy against the learning rate", "A high learning rate costs accuracy on CIFAR-10 only.",
        _C10, _RATE_ROWS, (_ACCURACY,), _BOTH, curves("learning rate", {"200-NN accuracy, %": "accuracy"}, log_x=True),
        (
            _there("CIFAR-10", "lr = 0.06", "lr = 0.5", "accuracy", 0.5),
            computed("lr = 0.5 loses less than 0.5 against lr = 0.06 on CIFAR-100", _unmoved),
        ), _SMALL, "The paper does not list its rates: these are chosen.",
    ),
    Study(
        "dystress/table1", "Linear accuracy on ImageNet-100", "DySTreSS is above every other framework.", _I100,
        _TABLE1, _LINEAR, _IN100,
        claims=(above("DySTreSS", "SimCLR", "top-1"), above("DySTreSS", "DCL", "top-1", margin=0.3),
                above("DySTreSS", "MACL", "top-1", margin=0.3), above("DySTreSS*", "DySTreSS", "top-1", margin=0.3)),
        small=_SMALL_IMAGENET, note=f"200 epochs are a choice: the paper does not say. {_OLD_DCL}",
    ),
    Study(
        "dystress/table2", "Linear accuracy on ImageNet-1K, 100 epochs", "DySTreSS is above every other framework.",
        "dystress/imagenet", _TABLE2, _LINEAR, _IN1K, small=_SMALL_IMAGENET,
        claims=(above("DySTreSS", "SimCLR", "top-1"), best("DySTreSS", _names(_TABLE2), "top-1")),
        note="The others' numbers are lightly's (DCLW is 64.5 there); MACL's 64.3 is its own, after 200 epochs. " + _OLD_DCL,
    ),
    Study(
        "dystress/table3", "200-NN accuracy on CIFAR-10 and CIFAR-100", "DySTreSS is above SimCLR, MoCo v2, DCL and MACL.",
        _C10,
        (*_TABLE3, Row("SimCLR τ = 0.1", {"loss": "simclr(temperature=0.1)"}), Row("DCL", _CIFAR["DCL"]),
         Row("MoCo v2 (one query)", {**_MOCO, "symmetric": False})),
        _KNN, _BOTH,
        claims=(best("DySTreSS", _names(_TABLE3), of=" of the printed rows"), above("DySTreSS", "SimCLR"),
                above("DySTreSS", "SimCLR τ = 0.1", margin=0.3), above("DySTreSS", "MACL", margin=0.3),
                above("DySTreSS", "DCL", margin=0.3)),
        note=f"{_NOISE} The paper takes the best epoch, we the last. {_OLD_DCL} That form is its row here. Beside the printed "
             "rows are three without a printed number: SimCLR at 0.1, a constant inside DySTreSS's range (SimCLR's is "
             "0.5); DCL as it was published; and MoCo v2 with one query for each image, as published: in lightly, whose settings "
             "these are, both views are queries (and both views' keys join the queue; here the second's). The text's gains on "
             "CIFAR-100, 1.77 and 1.39, are 4.25 and 0.42 by the table.",
    ),
    Study(
        "dystress/table4", "CIFAR-10-LT and CIFAR-100-LT, 2000 epochs", "DySTreSS is above the temperature schedule.",
        "dystress/table4-cifar10-lt", _TABLE4, _KUKLEVA, _LT, small=_SMALL_KUKLEVA,
        claims=tuple(above("DySTreSS", "Kukleva et al.", q.name) for q in _KUKLEVA),
        note="The paper does not name its measure: its numbers are nearest to 1-NN. It thins classes as Kukleva et al. do, from "
             "4500 or 450 images (imbalance=index:FILE takes their lists); here from 5000 or 500.",
    ),
    Study(
        "dystress/table5", "ImageNet-100-LT", "DySTreSS is above the temperature schedule.", "dystress/table5-imagenet100-lt",
        _rows(_IMAGENET, _KUKLEVA, _IN100_LT, {"Kukleva et al.": "- - 45.3 -", "DySTreSS": "- - 46.1 -"}), _KUKLEVA, _IN100_LT,
        claims=tuple(above("DySTreSS", "Kukleva et al.", q.name) for q in _KUKLEVA),
        small={**_SMALL_KUKLEVA, "views": "kukleva", "encoder": "resnet18-cifar", "batch": 512, "imbalance": _TAIL,
               "probe": "train"},
        note="The paper does not name its measure: its numbers are nearest to few-shot. The data is a folder that is long-tailed "
             "already. 800 epochs are Kukleva et al.'s; the paper says 2000.",
    ),
    *(
        Study(
            f"dystress/table{k}", f"{on.name}, 500 epochs", "DySTreSS is about 1 % above SimCLR.", f"dystress/{on.data}-lt",
            _rows(_CIFAR, _NEAREST, (on,), printed), _NEAREST, (on,), small=_SMALL_LT,
            claims=tuple(above(row, "SimCLR", q.name) for row in ("DySTreSS", "DySTreSS*") for q in _NEAREST),
            note="DySTreSS is 0.07–0.2 and DySTreSS* 0.1–0.2.",
        )
        for k, on, printed in ((6, _LT[0], _TABLE6), (7, _LT[1], _TABLE7))
    ),
    Study(
        "dystress/table8", "Against methods without negatives, ImageNet-100, 400 epochs", "DySTreSS is above all of them.",
        "dystress/table8-imagenet100", _TABLE8, _LINEAR, _IN100, small=_SMALL_IMAGENET,
        claims=(_above_printed("DySTreSS (2048)", _TABLE8, "top-1", ("paper",)),),
        note="In brackets: the printed width of the projector; BYOL's 4096 is its hidden width. The small scale has 128.",
    ),
    Study(
        "dystress/table9", "Against DINO and W-MSE, 200-NN", "DySTreSS is above both.", _C10, _TABLE9, _KNN, _BOTH,
        claims=(_above_printed("DySTreSS", _TABLE9, "", ("small", "paper")),),
        note=f"{_NOISE} The text says batch 256, the appendix 128. The small scale keeps 200 epochs: the run is Table 3's.",
    ),
    Study(
        "dystress/table10", "Cosine, linear and exponential temperature", "All three do about the same.", _C10,
        _rows(_CIFAR, _KNN, _BOTH, _TABLE10), _KNN, _BOTH, small=_SMALL,
        claims=(within(list(_TABLE10), spread=1.0, what="accuracy"),),
        note=f"The paper gives no formulas; ours have the same minimum and the same ends. {_NOISE}",
    ),
    Study(
        "dystress/table11", "Fine-tuning on medical and natural images", "DySTreSS is above SimCLR on all seven.",
        rows=_rows(_IMAGENET, _TASKS, _IN1K, _TABLE11), quantities=_TASKS, sets=_IN1K,
        claims=tuple(above("DySTreSS", "SimCLR", task) for task in ("MURA", "CIFAR-100", "Flowers")),
        missing="the medical data sets are not here, and fine-tuning with class weights is not built",
    ),
    Study(
        "dystress/table12", "Sentences: STS and transfer tasks", "DySTreSS is above SimCSE and MACL.",
        rows=_rows({name: {} for name in _TABLE12}, _SENTENCES, _WIKI, _TABLE12), quantities=_SENTENCES, sets=_WIKI,
        claims=(above("0.05–0.07, -0.4", "MACL", "STS-average"), above("0.03–0.05, -0.6", "MACL", "transfer-average")),
        note="Rows are τ_min–τ_max and Δs. The STS averages 74.84 of MACL and 74.80 of 0.03–0.05 are misprints of 75.45 and "
             "75.46. Transfer tasks are accuracies.",
        missing="text encoders are not built, so that SimCSE cannot be trained",
    ),
    Study(
        "dystress/table13", "Uniformity, alignment and inter-class uniformity", "DySTreSS has the lowest inter-class uniformity.",
        _C10, _rows(_CIFAR, (*_WHOLE, _ACCURACY), _BOTH, _TABLE13), (*_WHOLE, _ACCURACY), _BOTH,
        claims=(above("SimCLR", "DySTreSS", "inter-class U", margin=0.01), above("DCL", "DySTreSS", "inter-class U", margin=0.01),
                above("SimCLR", "DySTreSS", "U", margin=0.05), above("DCL", "DySTreSS", "U", margin=0.02)),
        note=f"The paper does not say which pairs align: ours are of one class. {_OURS} It says that DySTreSS has the lowest "
             "uniformity; in its own table DCL's is lower on CIFAR-100 and ImageNet-1K. ImageNet-1K is in table13-imagenet. "
             f"The small scale keeps 200 epochs: all runs but DCLW's are Table 3's. {_OLD_DCL}",
    ),
    Study(
        "dystress/table13-imagenet", "Uniformity, alignment and inter-class uniformity, ImageNet-1K",
        "DySTreSS has lower inter-class uniformity than SimCLR.", "dystress/imagenet",
        _rows(_IMAGENET, (*_WHOLE, _ACCURACY), _IN1K, _TABLE13_IN1K), (*_WHOLE, replace(_LINEAR[0], name="accuracy")), _IN1K,
        claims=(above("SimCLR", "DySTreSS", "inter-class U", margin=0.01), above("SimCLR", "DySTreSS", "U", margin=0.05)),
        small=_SMALL_IMAGENET, note=f"{_OURS} DCL is printed lower than DySTreSS in both. {_OLD_DCL}",
    ),
    Study(
        "dystress/table14", "Temperature ranges on ImageNet-100", "0.1–0.2 is best; both too high and too low cost accuracy.",
        _I100, _TABLE14, _FOUR, _IN100, small=_SMALL_IMAGENET,
        claims=(best("0.1–0.2", _names(_TABLE14), "linear top-1"), above("0.1–0.2", "0.07–0.1", "20-NN top-1"),
                above("0.1–0.2", "0.07–0.5", "20-NN top-1"), above("0.07–0.1", "0.07–0.5", "linear top-1", margin=0.3)),
        note="0.1–0.2 is 78.78 in Table 1.",
    ),
    Study(
        "dystress/table15", "Shifted temperature functions on ImageNet-100", "A minimum on the left, Δs = -0.4, is best.",
        _I100, _TABLE15, _FOUR, _IN100, small=_SMALL_IMAGENET,
        claims=(best("Δs = -0.4", _names(_TABLE15), "linear top-1"),
                above("Δs = -0.2", "Δs = 0.2", "linear top-1", margin=0.2),
                above("Δs = -0.4", "Δs = 0.4", "linear top-1", margin=0.2)),
        note="The scale k is (1 + |Δs|)/2. At Δs = -0.4 the minimum is at s = -0.3, see Figure 4. By 20-NN Δs = -0.2 is best.",
    ),
    Study(
        "dystress/table16", "A temperature that only rises", "It does as well: a high temperature near s = -1 is not needed.",
        _C10, _rows(_CIFAR, _KNN, _BOTH, _TABLE16), _KNN, _BOTH, small=_SMALL,
        claims=(within(list(_TABLE16), spread=0.7, what="accuracy"),), note=_NOISE,
    ),
    Study(
        "dystress/section5.1", "DySTreSS's temperature in DCL, ImageNet-100", "It adds 0.14 % to Table 1's accuracy.", _I100,
        (*(row for row in _TABLE1 if row.name in ("DCL", "DySTreSS")), Row("DySTreSS + DCL", _IMAGENET["DySTreSS + DCL"])),
        _LINEAR, _IN100, small=_SMALL_IMAGENET,
        claims=(above("DySTreSS + DCL", "DCL", "top-1", margin=0.3), above("DySTreSS + DCL", "DySTreSS", "top-1", margin=0.3)),
        note="The paper prints the gain alone, and not over which row. Its code differentiates through τ and uses lightly's old "
             "DCL; ours is detached and joint.",
    ),
)  # fmt: skip
