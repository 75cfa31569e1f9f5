"""The uniformity-tolerance dilemma on small data: `contrapose demo`, and the same comparison on a user's own data.

In the demo all losses start from the same encoder, trained briefly with NT-Xent at τ = 0.2, so that a run of seconds shows
what each loss prefers rather than how fast it starts.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from contrapose.report.document import Block, Chart, Series, Text
from contrapose.studies.blocks import table
from contrapose.studies.claims import HOLDS, compare, computed_claim, describe_cell, is_above, is_monotonic
from contrapose.studies.results import Cell, Results
from contrapose.studies.study import Plan, Quantity, Row, Study, StudyData
from contrapose.training import Run, Trainer

TEMPERATURES = (0.1, 0.2, 0.3, 0.5, 1.0)
OTHER_LOSSES = {
    "DySTreSS": "dystress",
    "hard contrastive": "hard_contrastive(temperature=0.5)",
    "CACR": "cacr",
    "balanced": "balanced",
}
QUANTITIES = (
    Quantity(name="kNN", measure="knn_top1"),
    Quantity(name="-U", measure="-uniformity", unit=""),
    Quantity(name="T", measure="tolerance", unit=""),
)
# Settings of the run that trains the common encoder, and of the runs that start from it.
PRETRAINING: Mapping[str, Any] = {"batch": 64, "loss": "nt_xent(temperature=0.2)", "metrics": 1000}
CONTINUATION: Mapping[str, Any] = {"batch": 64, "metrics": 2000}


@dataclass(frozen=True)
class Size:
    """How much the demo trains."""

    digits: int
    pretraining_epochs: int  # of the common encoder
    epochs: int  # of each loss, from there

    def pretraining_run(self) -> Run:
        """Return the run that trains the common encoder."""
        epochs = self.pretraining_epochs
        return Run(**{**PRETRAINING, "limit": self.digits, "epochs": epochs, "knn_every": epochs})

    @property
    def settings(self) -> Mapping[str, Any]:
        """Return the settings that all losses share."""
        return {**CONTINUATION, "limit": self.digits, "epochs": self.epochs, "knn_every": self.epochs}

    def seconds(self, step_seconds: float, jobs: int) -> float:
        """Estimate how long the demo takes, from the seconds of a training step."""
        steps = self.digits // int(PRETRAINING["batch"])
        runs = len(TEMPERATURES) + len(OTHER_LOSSES)
        # A quarter of the time goes to evaluation and start-up.
        return 1.35 * step_seconds * steps * (self.pretraining_epochs + self.epochs * math.ceil(runs / jobs))


# From the one that the README shows down to what a slow machine does in a few minutes.
SIZES = (
    Size(digits=3000, pretraining_epochs=16, epochs=7),
    Size(digits=2000, pretraining_epochs=12, epochs=6),
    Size(digits=1500, pretraining_epochs=12, epochs=5),
    Size(digits=1000, pretraining_epochs=8, epochs=4),
)


def measure_step_seconds(jobs: int) -> float:
    """Measure the seconds of a training step with the threads that each of `jobs` runs has, in about a second."""
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads // jobs))
    try:
        with tempfile.TemporaryDirectory() as folder:
            run = Run(**{**PRETRAINING, "limit": 256, "epochs": 2, "knn_every": 2, "metrics": 0})
            Trainer(run, Path(folder), say=lambda text: None, fast=False).train()
            records = [json.loads(line) for line in (Path(folder) / "records.jsonl").read_text().splitlines()]
    finally:
        torch.set_num_threads(threads)
    return float(records[-1]["seconds"]) / (256 // int(PRETRAINING["batch"]))  # the first epoch is a warm-up


def largest_size(step_seconds: float, jobs: int, minutes: float) -> Size:
    """Return the largest size that takes at most so many minutes; the smallest if none does."""
    return next((size for size in SIZES if size.seconds(step_seconds, jobs) <= 60 * minutes), SIZES[-1])


_NT_XENT_NAMES = tuple(f"NT-Xent τ = {tau:g}" for tau in TEMPERATURES)
_NT_XENT_POINTS = list(zip(TEMPERATURES, _NT_XENT_NAMES, strict=True))
INTRODUCTION = (
    "A contrastive loss pushes images apart. If it pushes all of them evenly, they spread over the whole sphere (uniformity,"
    " -U), and images of one class are separated too; if it pushes less, classes stay together (tolerance, T), and much of the"
    " sphere is unused. The temperature of NT-Xent moves along that line; the losses of the four papers look for something"
    " better than a point on it."
)


def demo(weights: Path, size: Size) -> Plan:
    """Return the plan of the demo: NT-Xent at five temperatures and four other losses, from the same encoder."""
    rows = [
        Row(name=name, changes={"loss": f"nt_xent(temperature={tau:g})"}, x=tau, series="NT-Xent")
        for tau, name in _NT_XENT_POINTS
    ]
    rows += [Row(name=name, changes={"loss": loss}) for name, loss in OTHER_LOSSES.items()]
    study = Study(
        name="demo",
        title="Uniformity, tolerance and accuracy",
        claim="Low temperatures spread images, high temperatures keep classes together.",
        rows=tuple(rows),
        quantities=QUANTITIES,
        sets=(StudyData(name="digits", data="digits"),),
        show=show_dilemma,
        claims=(
            is_monotonic(_NT_XENT_POINTS, "-U", up=False, margin=0.1, what="uniformity of NT-Xent, along τ,"),
            is_monotonic(_NT_XENT_POINTS, "T", up=True, margin=0.05, what="tolerance of NT-Xent, along τ,"),
            is_above(_NT_XENT_NAMES[1], _NT_XENT_NAMES[-1], "kNN", margin=1.0),
            computed_claim("a loss of the four papers does at least as well as the best temperature", _others_keep_up),
        ),
        base={**size.settings, "init": str(weights)},
        note=f"Every run trains for {size.epochs} epochs on {size.digits:,} digits, from the same encoder. Below τ = 0.1 that"
        " is too short. One seed says little about differences below a point; --seeds 3 says more.",
    )
    return Plan(study=study, scale="own", sets=study.sets)


def comparison(base: Run, losses: Sequence[str], test_images: int) -> Plan:
    """Return the plan that compares losses on a user's data; `base` has all other settings.

    `test_images` is their number, which decides how large a difference must be to count.
    """
    study_data = StudyData(name=Path(base.data).name or base.data, data=base.data)
    study = Study(
        name="compare",
        title=f"Losses on {study_data.name}",
        claim="Which loss suits this data?",
        rows=tuple(Row(name=loss, changes={"loss": loss}) for loss in losses),
        quantities=QUANTITIES,
        sets=(study_data,),
        show=partial(show_dilemma, test_images=test_images),
        base={key: value for key, value in vars(base).items() if key not in ("loss", "data", "seed")},
    )
    return Plan(study=study, scale="own", sets=study.sets)


def show_dilemma(study: Study, results: Results, test_images: int = 0) -> list[Block]:
    """Return the advice, every loss in the plane of uniformity and tolerance, accuracy over temperature, and the table."""
    line = [row for row in study.rows if row.series == "NT-Xent"]
    others = [row for row in study.rows if row.series != "NT-Xent"]
    series = [_uniformity_tolerance(results, line, "NT-Xent")] if line else []
    series += [_uniformity_tolerance(results, [row], row.name) for row in others]
    plane = Chart(
        title="Spread out, or keep classes together",
        x="-U: images spread evenly →",
        y="tolerance: classes stay together →",
        series=tuple(s for s in series if s.x),
        alt="Each loss at its uniformity and tolerance; NT-Xent's temperatures make a line.",
    )
    charts = [plane, _accuracy_chart(results, line, others)] if line else [plane]
    return [Text((advice(study, results, test_images),)), *charts, *table(study, results)]


def _accuracy_chart(results: Results, line: Sequence[Row], others: Sequence[Row]) -> Chart:
    """Return NT-Xent's accuracy over temperature, and the other losses as horizontal lines."""
    cells = [(float(row.x), results.cell(row.name, "kNN")) for row in line if isinstance(row.x, float)]
    measured = [(x, cell) for x, cell in cells if cell.values]
    series = [
        Series(
            name="NT-Xent",
            x=tuple(x for x, _ in measured),
            y=tuple(cell.mean for _, cell in measured),
            spread=tuple(cell.spread for _, cell in measured),
        )
    ]
    for row in others:
        cell = results.cell(row.name, "kNN")
        if cell.values:
            series.append(Series(row.name, (TEMPERATURES[0], TEMPERATURES[-1]), (cell.mean, cell.mean)))
    return Chart(
        title="Accuracy against temperature",
        x="temperature of NT-Xent",
        y="kNN accuracy, %",
        series=tuple(series),
        log_x=True,
    )


def _uniformity_tolerance(results: Results, rows: Sequence[Row], name: str) -> Series:
    """Return rows as points of the plane; those of a line are labelled with their temperature."""
    names = [row.name for row in rows if results.cell(row.name, "-U").values and results.cell(row.name, "T").values]
    return Series(
        name=name,
        x=tuple(results.cell(row, "-U").mean for row in names),
        y=tuple(results.cell(row, "T").mean for row in names),
        labels=tuple(f"{row}: kNN {results.cell(row, 'kNN').mean:.1f} %" for row in names),
        annotations=tuple(row.removeprefix("NT-Xent ") for row in names if len(rows) > 1),
    )


def _others_keep_up(results: Results) -> tuple[bool | None, str]:
    """Decide whether the best of the other losses is at most 0.3 points below NT-Xent's best temperature."""

    def best(names: Sequence[str]) -> tuple[str, Cell] | None:
        cells = [(name, results.cell(name, "kNN")) for name in names]
        return max((pair for pair in cells if pair[1].values), key=lambda pair: pair[1].mean, default=None)

    nt_xent, other = best(_NT_XENT_NAMES), best(tuple(OTHER_LOSSES))
    if nt_xent is None or other is None:
        return None, "too few runs"
    evidence = f"{other[0]} {describe_cell(other[1])}, {nt_xent[0]} {describe_cell(nt_xent[1])}"
    return other[1].mean >= nt_xent[1].mean - 0.3, evidence


def _least_difference(accuracy: float, test_images: int) -> float:
    """Return the least difference in accuracy that counts: a point, or two standard errors of so many test images."""
    share = min(max(accuracy / 100, 0.05), 0.95)  # at 0 or 100 % the standard error would be 0
    return max(1.0, 200 * math.sqrt(2 * share * (1 - share) / test_images)) if test_images else 1.0


def advice(study: Study, results: Results, test_images: int = 0) -> str:
    """Return which loss to use and the evidence: kNN accuracies on `test_images` images."""
    cells = {row.name: results.cell(row.name, "kNN") for row in study.rows}
    measured = {name: cell for name, cell in cells.items() if cell.values}
    if not measured:
        return "No run has an accuracy yet: the data needs labelled test images, or no run is done."
    ranked = sorted(measured, key=lambda name: -measured[name].mean)
    best = ranked[0]
    least = _least_difference(measured[best].mean, test_images)
    tied = [name for name in ranked[1:] if compare(measured[best], measured[name], least) != HOLDS]
    ranking = ", ".join(f"{name} {describe_cell(measured[name])}" for name in ranked)
    if len(ranked) == 1:
        return f"kNN accuracy: {ranking}. There is nothing to compare it with."
    if len(tied) == len(ranked) - 1:
        chance = f"; on {test_images:,} test images {least:.0f} points are chance" if least > 1 else ""
        return f"No loss stands out in kNN accuracy: {ranking}{chance}. Longer runs or more seeds may separate them."
    text = f"Use {best}: kNN accuracy {describe_cell(measured[best])}"
    if math.isfinite(results.cell(best, "-U").mean):
        text += f", -U {results.cell(best, '-U').mean:.2f}, tolerance {results.cell(best, 'T').mean:.2f}"
    if tied:
        text += f". {', '.join(tied)} cannot be distinguished from it"
        text += (
            f" with one seed (differences below {least:.2g})" if results.seeds == 1 else f" with {results.seeds} seeds"
        )
    return f"{text}. Last: {ranked[-1]}, {describe_cell(measured[ranked[-1]])}."
