"""Studies of the figures of the DySTreSS paper."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from contrapose.explanation import Subject
from contrapose.lab.report.document import Block, Chart, Heat, Series, points
from contrapose.lab.studies.claims import FAILS, HOLDS, Claim, compare, computed_claim, describe_cell, is_above, is_best
from contrapose.lab.studies.dystress import printed
from contrapose.lab.studies.dystress.equation import FIGURE2
from contrapose.lab.studies.dystress.methods import (
    ACCURACY,
    CIFAR_METHODS,
    CIFAR_PRESET,
    CIFAR_SETS,
    FIGURE5_QUANTITIES,
    IMAGENET100,
    IMAGENET100_PRESET,
    RANGE_METHODS,
    SHORT_SCALE,
    SMALL_SCALE_IMAGENET,
    TOLERANCE_PAIRS,
    UNIFORMITY_AND_TOLERANCE,
    cosine_loss,
    method_rows,
    row_names,
)
from contrapose.lab.studies.measures import Histograms
from contrapose.lab.studies.report_blocks import curves, grid, table
from contrapose.lab.studies.results import Results
from contrapose.lab.studies.study import Quantity, Row, Show, Study

# Figure 1: similarities of positives, false and true negatives.


def _histograms(results: Results, row: str) -> list[tuple[str, Mapping[str, list[float]]]]:
    """Return ("start" or "end" of training, histograms) for each seed."""
    evaluations = results.evaluations.get((row, results.sets[0]), ()) if results.sets else ()
    return [
        (when, evaluation["histograms"][when])
        for evaluation in evaluations
        if "histograms" in evaluation
        for when in ("start", "end")
    ]


def _show_histograms(study: Study, results: Results) -> list[Block]:
    """Return the densities of similarities before and after training for each row's first run, and the table."""
    blocks: list[Block] = []
    kinds = {"two views": "true_positive", "one class": "false_negative", "two classes": "true_negative"}
    for row in study.rows:
        for when, histogram in _histograms(results, row.name)[:2]:
            x = tuple((a + b) / 2 for a, b in pairwise(histogram["edges"]))
            series = tuple(Series(name, x, tuple(histogram[kind])) for name, kind in kinds.items())
            title = f"{row.name}, {when} of training"
            blocks.append(Chart(title=title, x="cosine similarity", y="density", series=series))
    return blocks + table(study, results)


def _positives_are_highest(results: Results) -> tuple[bool | None, str]:
    means = [
        (when, histogram["means"]) for row in ("SimCLR", "DySTreSS") for when, histogram in _histograms(results, row)
    ]
    evidence = "; ".join(f"{when} {tp:.3f}, {fn:.3f}, {tn:.3f}" for when, (tp, fn, tn) in means)
    ordered = [tp > fn > tn for when, (tp, fn, tn) in means if when == "end"]
    return all(ordered) if ordered else None, evidence or "not run"


def _training_separates(results: Results) -> tuple[bool | None, str]:
    """Compare the differences between the means before and after training, in every run."""
    widened, evidence = [], []
    for row in ("SimCLR", "DySTreSS"):
        means = [histogram["means"] for _, histogram in _histograms(results, row)]  # start and end, seed by seed
        for start, end in zip(means[::2], means[1::2], strict=True):
            before, after = ([a - b for a, b in pairwise(three)] for three in (start, end))
            widened.append(all(late > early for early, late in zip(before, after, strict=True)))
            differences = [f"{early:.3f} to {late:.3f}" for early, late in zip(before, after, strict=True)]
            evidence.append(f"{row}: {', '.join(differences)}")
    return all(widened) if widened else None, "; ".join(evidence) or "not run"


# Figures 3 and 6: the ranges (τ_min, τ_max) mentioned in the text and the tables, and (0.1, 0.5).

_RANGES = ((0.07, 0.1), (0.07, 0.2), (0.07, 0.5), (0.1, 0.2), (0.1, 0.5), (0.2, 0.2), (0.2, 0.5))
_RANGE_LOSSES = {f"{low:g}–{high:g}": cosine_loss(low, high) for low, high in _RANGES}
_RANGE_ROWS = tuple(
    # The default range is not written out, so that its run is shared with the tables.
    Row(name=name, changes={"loss": "dystress" if limits == (0.07, 0.2) else loss}, x=limits)
    for limits, (name, loss) in zip(_RANGES, _RANGE_LOSSES.items(), strict=True)
)
# Figures 4 and 7: (Δs, similarity at which the temperature is lowest) for each version.
_SHIFTS: Mapping[str, tuple[float | None, float]] = {
    "SMv3": (0.0, -0.5),
    "SMv2a": (-0.2, -0.4),
    "SMv2b": (-0.4, -0.3),
    "vanilla": (None, 0.0),
    "SMv1b": (0.4, 0.3),
    "SMv1a": (0.2, 0.4),
}
_SHIFT_LOSSES = {name: cosine_loss(0.1, 0.2, shift) for name, (shift, _) in _SHIFTS.items()}
_SHIFT_ROWS = tuple(
    Row(name=name, changes={"loss": "dystress" if shift is None else cosine_loss(0.07, 0.2, shift)}, x=lowest)
    for name, (shift, lowest) in _SHIFTS.items()
)
_SIMILARITIES = torch.linspace(-1, 1, 401, dtype=torch.float64)


def _temperature(loss: str) -> Tensor:
    """Return τ(s) of a loss on `_SIMILARITIES`."""
    tau = Subject.of(loss).nominal_temperature(_SIMILARITIES)
    assert tau is not None
    return tau


def _show_temperatures(losses: Mapping[str, str]) -> Show:
    """Return a function that draws τ(s) of some losses."""

    def show(study: Study, results: Results) -> list[Block]:
        x = tuple(_SIMILARITIES.tolist())
        series = tuple(Series(name, x, tuple(_temperature(loss).tolist())) for name, loss in losses.items())
        return [Chart(title=study.title, x="cosine similarity", y="temperature", series=series)]

    return show


def _ranges_fall_and_rise(results: Results) -> tuple[bool, str]:
    slopes = [_temperature(cosine_loss(low, high)).diff() for low, high in _RANGES if low < high]
    middle = len(_SIMILARITIES) // 2
    fall_and_rise = [bool((slope[:middle] < 0).all() and (slope[middle:] > 0).all()) for slope in slopes]
    return all(fall_and_rise), f"{len(slopes)} ranges"


def _ends_keep_tau_max(results: Results) -> tuple[bool, str]:
    ends = [float(_temperature(loss)[end]) for loss in _SHIFT_LOSSES.values() for end in (0, -1)]
    return all(abs(tau - 0.2) < 1e-9 for tau in ends), f"from {min(ends):.4f} to {max(ends):.4f}"


def _minimum_moves(results: Results) -> tuple[bool, str]:
    minima = {name: float(_SIMILARITIES[_temperature(loss).argmin()]) for name, loss in _SHIFT_LOSSES.items()}
    as_named = all((s > 0) == name.startswith("SMv1") for name, s in minima.items())
    return as_named, ", ".join(f"{name} {s:+.2f}" for name, s in minima.items())


# Figures 5 to 8.


def _show_against_accuracy(study: Study, results: Results) -> list[Block]:
    """Return charts of uniformity and tolerance over accuracy, with one mark per range, and the table."""
    accuracy, *others = FIGURE5_QUANTITIES
    blocks: list[Block] = []
    for quantity in others:
        series = []
        for row in study.rows:
            pairs = [
                (
                    results.cell(row.name, accuracy.name, data_set).mean,
                    results.cell(row.name, quantity.name, data_set).mean,
                )
                for data_set in results.sets
            ]
            series.append(points(row.name, [(x, y) for x, y in pairs if not math.isnan(x + y)], points=True))
        drawn = tuple(s for s in series if s.x)
        blocks.append(Chart(title=study.title, x="20-NN accuracy, %", y=quantity.name, series=drawn))
    return blocks + table(study, results)


def _show_grids(study: Study, results: Results) -> list[Block]:
    """Return a heat map for each quantity, and one table."""
    blocks: list[Block] = []
    for quantity in study.quantities:
        heats = [b for b in grid("τ_min", "τ_max", quantity.name)(study, results) if isinstance(b, Heat)]
        blocks += [replace(heat, title=f"{quantity.name}: {heat.title}") for heat in heats]
    return blocks + table(study, results)


def _is_above_on(data_set: str, better: str, worse: str, *, quantity: str, margin: float) -> Claim:
    """Claim that row `better` is above row `worse` on one data set."""

    def decide(results: Results) -> tuple[bool | None, str]:
        a, b = results.cell(better, quantity, data_set), results.cell(worse, quantity, data_set)
        outcome = {HOLDS: True, FAILS: False}.get(compare(a, b, margin))
        return outcome, f"{describe_cell(a)} against {describe_cell(b)}"

    return computed_claim(f"{better} is above {worse} in {quantity} on {data_set} (margin {margin:g})", decide)


_LEARNING_RATE_ROWS = tuple(
    Row(name=f"lr = {lr:g}", changes={"loss": "dystress", "lr": lr}, x=lr)
    for lr in (0.015, 0.03, 0.06, 0.12, 0.25, 0.5)
)


def _high_rate_costs_little(results: Results) -> tuple[bool | None, str]:
    low, high = (results.cell(f"lr = {lr}", "accuracy", "CIFAR-100") for lr in (0.06, 0.5))
    little = low.mean - high.mean < 0.5 if low.values and high.values else None
    return little, f"{describe_cell(low)} against {describe_cell(high)}"


FIGURES = (
    Study(
        name="dystress/figure1",
        title="Similarities of positives, false and true negatives",
        claim="After training positives are above false negatives, and those above true negatives.",
        preset=CIFAR_PRESET,
        rows=tuple(Row(name=name, changes=CIFAR_METHODS[name]) for name in ("SimCLR", "DySTreSS")),
        quantities=(
            Quantity(
                name="histograms",
                measure=Histograms(),
                unit="",
                paper="similarities of two views, of one class and of two classes, before and after training",
            ),
            replace(ACCURACY, extra=True),
        ),
        sets=CIFAR_SETS[:1],
        show=_show_histograms,
        claims=(
            computed_claim(
                "after training: two views above one class above two classes, in the mean", _positives_are_highest
            ),
            computed_claim("training widens both differences of the means", _training_separates),
        ),
        note="The paper does not say which method it trained, or which output and images it compares; we use the projector's "
        "output on 2,000 test images. Before training, the batch norms have the statistics of training images, as in "
        "the first steps. The runs are those of Table 3.",
        differences=("200-NN accuracy is not in the figure.",),
    ),
    FIGURE2,
    Study(
        name="dystress/figure3",
        title="Temperature functions for different ranges",
        claim="The cosine is lowest at s = 0 and highest at both ends.",
        show=_show_temperatures(_RANGE_LOSSES),
        claims=(computed_claim("τ(s) falls for s < 0 and rises for s > 0", _ranges_fall_and_rise),),
        note="The paper does not list all of its ranges. s/τ(s) is increasing everywhere only if τ_min/(τ_max - τ_min) > π/4 "
        "- ½, which 0.07–0.5 and 0.1–0.5 do not satisfy.",
    ),
    Study(
        name="dystress/figure4",
        title="Shifted temperature functions",
        claim="The minimum moves left or right, and both ends keep τ_max.",
        show=_show_temperatures(_SHIFT_LOSSES),
        claims=(
            computed_claim("τ(±1) = τ_max for every shift", _ends_keep_tau_max),
            computed_claim("version 1 has its minimum on the right, versions 2 and 3 on the left", _minimum_moves),
        ),
        note="Δs is not the distance by which the minimum moves: the minimum is at (1 - |Δs|)/2 on the side of Δs, further left "
        "for -0.2 than for -0.4. At Δs = 0, the printed condition holds for every s; the paper must mean the left half.",
    ),
    Study(
        name="dystress/figure5",
        title="Uniformity and tolerance against 20-NN accuracy",
        claim="The ranges that do best have high tolerance and low inter-class uniformity.",
        preset=IMAGENET100_PRESET,
        rows=method_rows(RANGE_METHODS, FIGURE5_QUANTITIES, IMAGENET100, printed.FIGURE5),
        quantities=FIGURE5_QUANTITIES,
        sets=IMAGENET100,
        show=_show_against_accuracy,
        claims=(
            is_above("0.07–0.1", "0.1–0.2", "inter-class U", margin=0.01),
            is_above("0.07–0.5", "0.1–0.2", "inter-class U", margin=0.01),
            is_above("0.07–0.1", "0.07–0.5", "T", margin=0.01),
        ),
        small_settings=SMALL_SCALE_IMAGENET,
        short_settings=SHORT_SCALE,
        differences=TOLERANCE_PAIRS,
        note="The paper says that a low temperature gives high tolerance; Wang & Liu find the opposite.",
    ),
    Study(
        name="dystress/figure6",
        title="Accuracy, uniformity and tolerance for temperature ranges",
        claim="0.07–0.2 is best; higher temperatures are less uniform and more tolerant.",
        preset=CIFAR_PRESET,
        rows=_RANGE_ROWS,
        quantities=(ACCURACY, *UNIFORMITY_AND_TOLERANCE),
        sets=CIFAR_SETS,
        show=_show_grids,
        claims=(
            is_best("0.07–0.2", row_names(_RANGE_ROWS), "accuracy"),
            is_above("0.07–0.2", "0.2–0.5", "-U", margin=0.05),
            is_above("0.2–0.5", "0.07–0.2", "T", margin=0.02),
            _is_above_on("CIFAR-100", "0.07–0.2", "0.07–0.5", quantity="accuracy", margin=0.3),
        ),
        short_settings=SHORT_SCALE,
        differences=TOLERANCE_PAIRS,
        note="The paper does not list all of its ranges; we use those of Figure 3.",
    ),
    Study(
        name="dystress/figure7",
        title="Accuracy, uniformity and tolerance for shifted minima",
        claim="No shifted minimum is better than s = 0; a minimum on the left is more uniform and less tolerant.",
        preset=CIFAR_PRESET,
        rows=_SHIFT_ROWS,
        quantities=(ACCURACY, *UNIFORMITY_AND_TOLERANCE),
        sets=CIFAR_SETS,
        show=curves("s at which τ is lowest", {"200-NN accuracy, %": "accuracy", "-U": "-U", "tolerance": "T"}),
        claims=(
            is_best("vanilla", row_names(_SHIFT_ROWS), "accuracy"),
            is_above("SMv2b", "SMv1b", "-U", margin=0.02),
            is_above("SMv1b", "SMv2b", "T", margin=0.01),
            _is_above_on("CIFAR-10", "SMv2a", "SMv2b", quantity="accuracy", margin=0.2),
            _is_above_on("CIFAR-100", "SMv2b", "SMv2a", quantity="accuracy", margin=0.2),
        ),
        short_settings=SHORT_SCALE,
        differences=TOLERANCE_PAIRS,
        note="Versions a and b have |Δs| = 0.2 and 0.4; see Figure 4 for where their minima are.",
    ),
    Study(
        name="dystress/figure8",
        title="Accuracy against the learning rate",
        claim="A high learning rate costs accuracy on CIFAR-10 only.",
        preset=CIFAR_PRESET,
        rows=_LEARNING_RATE_ROWS,
        quantities=(ACCURACY,),
        sets=CIFAR_SETS,
        show=curves("learning rate", {"200-NN accuracy, %": "accuracy"}, log_x=True),
        claims=(
            _is_above_on("CIFAR-10", "lr = 0.06", "lr = 0.5", quantity="accuracy", margin=0.5),
            computed_claim("lr = 0.5 loses less than 0.5 against lr = 0.06 on CIFAR-100", _high_rate_costs_little),
        ),
        short_settings=SHORT_SCALE,
        note="The paper does not list its learning rates; these are our choice.",
    ),
)
