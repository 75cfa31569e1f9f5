"""The uniformity-tolerance dilemma on small data: `contrapose demo`, and the same comparison on a user's own data.

All losses go on from the same encoder, trained for a short while by NT-Xent at τ = 0.2, so that a run of seconds shows what
each of them prefers rather than how fast it starts.
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
from contrapose.studies.claims import above, compared, computed, moves, shown
from contrapose.studies.results import Results
from contrapose.studies.shows import table
from contrapose.studies.study import On, Plan, Quantity, Row, Study
from contrapose.training import Run, Trainer

TAUS = (0.1, 0.2, 0.3, 0.5, 1.0)
OTHERS = {
    "DySTreSS": "dystress",
    "hard contrastive": "hard_contrastive(temperature=0.5)",
    "CACR": "cacr",
    "balanced": "balanced",
}
QUANTITIES = (Quantity("kNN", "knn_top1"), Quantity("-U", "-uniformity", ""), Quantity("T", "tolerance", ""))
# The common start, and what every loss does from there.
START: Mapping[str, Any] = {"batch": 64, "loss": "nt_xent(temperature=0.2)", "metrics": 1000}
FROM_THERE: Mapping[str, Any] = {"batch": 64, "metrics": 2000}


@dataclass(frozen=True)
class Size:
    """How much the demo trains."""

    digits: int
    first: int  # epochs of the common start
    then: int  # epochs of each loss from there

    def start(self) -> Run:
        """The run whose encoder all others go on from."""
        return Run(**{**START, "limit": self.digits, "epochs": self.first, "knn_every": self.first})

    @property
    def settings(self) -> Mapping[str, Any]:
        """What all losses have in common."""
        return {**FROM_THERE, "limit": self.digits, "epochs": self.then, "knn_every": self.then}

    def seconds(self, step: float, jobs: int) -> float:
        """Estimate how long the demo takes, from the seconds of a step; a quarter of the time goes to evaluation and start-up."""
        steps = self.digits // int(START["batch"])
        runs = len(TAUS) + len(OTHERS)
        return 1.35 * step * steps * (self.first + self.then * math.ceil(runs / jobs))


# From the one that README shows down to what a slow machine does in a few minutes.
SIZES = (Size(3000, 16, 7), Size(2000, 12, 6), Size(1500, 12, 5), Size(1000, 8, 4))


def measured_step(jobs: int) -> float:
    """Seconds of a training step on this machine with the threads that one of `jobs` runs has, measured in about a second."""
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads // jobs))
    try:
        with tempfile.TemporaryDirectory() as folder:
            run = Run(**{**START, "limit": 256, "epochs": 2, "knn_every": 2, "metrics": 0})
            Trainer(run, Path(folder), say=lambda text: None, fast=False).train()
            epochs = [json.loads(line) for line in (Path(folder) / "records.jsonl").read_text().splitlines()]
    finally:
        torch.set_num_threads(threads)
    return float(epochs[-1]["seconds"]) / (256 // int(START["batch"]))  # the first epoch warms up


def fitting(step: float, jobs: int, minutes: float) -> Size:
    """The largest size that a machine does in so many minutes, or the smallest."""
    return next((size for size in SIZES if size.seconds(step, jobs) <= 60 * minutes), SIZES[-1])


_NAMES = tuple(f"NT-Xent τ = {tau:g}" for tau in TAUS)
_POINTS = list(zip(TAUS, _NAMES, strict=True))
LEAD = (
    "A contrastive loss pushes images apart. Pushed evenly, all images spread over the sphere (uniformity, -U), and images of"
    " one class come apart too; left together, classes stay together (tolerance, T), and the sphere is used badly. The"
    " temperature of NT-Xent moves along that line; the losses of the four papers look for something better than a point on it."
)


def demo(weights: Path, size: Size) -> Plan:
    """NT-Xent at five temperatures and four losses, from the same encoder."""
    rows = [Row(name, {"loss": f"nt_xent(temperature={tau:g})"}, x=tau, series="NT-Xent") for tau, name in _POINTS]
    rows += [Row(name, {"loss": loss}) for name, loss in OTHERS.items()]
    claims = (
        moves(_POINTS, "-U", up=False, margin=0.1, what="uniformity of NT-Xent, along τ,"),
        moves(_POINTS, "T", up=True, margin=0.05, what="tolerance of NT-Xent, along τ,"),
        above(_NAMES[1], _NAMES[-1], "kNN", margin=1.0),
        computed("a loss of the four papers does at least as well as the best temperature", _others_keep_up),
    )
    study = Study(
        "demo", "Uniformity, tolerance and accuracy", "Low temperatures spread, high temperatures keep classes together.",
        "", tuple(rows), QUANTITIES, (On("digits", "digits"),), dilemma, claims, base={**size.settings, "init": str(weights)},
        note=f"Every run goes on for {size.then} epochs of {size.digits:,} digits from one encoder. "
        "Below τ = 0.1 that is too short. One seed says little about differences below a point; --seeds 3 says more.",
    )  # fmt: skip
    return Plan(study, "own", study.sets)


def comparison(base: Run, losses: Sequence[str], tested: int) -> Plan:
    """The same picture for a user's data, `tested` images of it, and losses; `base` has everything else."""
    settings = {key: value for key, value in vars(base).items() if key not in ("loss", "data", "seed")}
    rows = tuple(Row(loss, {"loss": loss}) for loss in losses)
    on = On(Path(base.data).name or base.data, base.data)
    study = Study(
        "compare",
        f"Losses on {on.name}",
        "Which loss suits this data?",
        "",
        rows,
        QUANTITIES,
        (on,),
        partial(dilemma, tested=tested),
        base=settings,
    )
    return Plan(study, "own", (on,))


def dilemma(study: Study, results: Results, tested: int = 0) -> list[Block]:
    """Accuracy over the temperature, and every loss in the plane of uniformity and tolerance."""
    line = [row for row in study.rows if row.series == "NT-Xent"]
    lone = [row for row in study.rows if row.series != "NT-Xent"]
    blocks: list[Block] = []
    plane = [_place(results, line, "NT-Xent")] if line else []
    plane += [_place(results, [row], row.name) for row in lone]
    alt = "Each loss at its uniformity and tolerance; NT-Xent's temperatures make a line."
    x, y = "-U: images spread evenly →", "tolerance: classes stay together →"
    blocks.append(Chart("Spread out, or keep classes together", x, y, tuple(s for s in plane if s.x), alt=alt))
    if line:
        cells = [(float(row.x), results.cell(row.name, "kNN")) for row in line if isinstance(row.x, float)]
        there = [(x, cell) for x, cell in cells if cell.values]
        accuracy = [
            Series(
                "NT-Xent",
                tuple(x for x, _ in there),
                tuple(c.mean for _, c in there),
                tuple(c.spread for _, c in there),
            )
        ]
        for row in lone:
            cell = results.cell(row.name, "kNN")
            if cell.values:
                accuracy.append(Series(row.name, (TAUS[0], TAUS[-1]), (cell.mean, cell.mean)))
        blocks.append(
            Chart("What it is worth", "temperature of NT-Xent", "kNN accuracy, %", tuple(accuracy), log_x=True)
        )
    return [Text((advice(study, results, tested),)), *blocks, *table(study, results)]


def _place(results: Results, rows: Sequence[Row], name: str) -> Series:
    found = [
        (row, results.cell(row.name, "-U"), results.cell(row.name, "T"), results.cell(row.name, "kNN")) for row in rows
    ]
    there = [f for f in found if f[1].values and f[2].values]
    labels = tuple(f"{row.name}: kNN {accuracy.mean:.1f} %" for row, _, _, accuracy in there)
    xs, ys = tuple(u.mean for _, u, _, _ in there), tuple(t.mean for _, _, t, _ in there)
    return Series(
        name,
        xs,
        ys,
        labels=labels,
        annotations=tuple(row.name.removeprefix("NT-Xent ") for row, *_ in there if len(rows) > 1),
    )


def _others_keep_up(results: Results) -> tuple[bool | None, str]:
    plain = [(results.cell(name, "kNN"), name) for name in _NAMES if results.cell(name, "kNN").values]
    others = [(results.cell(name, "kNN"), name) for name in OTHERS if results.cell(name, "kNN").values]
    if not plain or not others:
        return None, "too few runs"
    best_plain, best_other = (max(found, key=lambda pair: pair[0].mean) for found in (plain, others))
    evidence = f"{best_other[1]} {shown(best_other[0])}, {best_plain[1]} {shown(best_plain[0])}"
    return best_other[0].mean >= best_plain[0].mean - 0.3, evidence


def _telling(accuracy: float, tested: int) -> float:
    """The least difference that says something: a point, or what `tested` images leave to chance (two standard errors)."""
    share = min(max(accuracy / 100, 0.05), 0.95)
    return max(1.0, 200 * math.sqrt(2 * share * (1 - share) / tested)) if tested else 1.0


def advice(study: Study, results: Results, tested: int = 0) -> str:
    """Which loss to use, with the evidence: accuracies on `tested` images."""
    cells = {row.name: results.cell(row.name, "kNN") for row in study.rows}
    there = {name: cell for name, cell in cells.items() if cell.values}
    if not there:
        return "No run has an accuracy yet: the data needs labelled test images, or no run is done."
    ranked = sorted(there, key=lambda name: -there[name].mean)
    best = ranked[0]
    least = _telling(there[best].mean, tested)
    near = [name for name in ranked[1:] if compared(there[best], there[name], least) != "holds"]
    told = ", ".join(f"{name} {shown(there[name])}" for name in ranked)
    if len(ranked) == 1:
        return f"kNN accuracy: {told}. There is nothing to compare it with."
    if len(near) == len(ranked) - 1:
        few = f"; on {tested:,} test images {least:.0f} points are chance" if least > 1 else ""
        return f"No loss stands out in kNN accuracy: {told}{few}. Longer runs or more seeds may tell them apart."
    text = f"Use {best}: kNN accuracy {shown(there[best])}"
    if math.isfinite(results.cell(best, "-U").mean):
        text += f", -U {results.cell(best, '-U').mean:.2f}, tolerance {results.cell(best, 'T').mean:.2f}"
    if near:
        text += f". {', '.join(near)} {'is' if len(near) == 1 else 'are'} not told apart from it"
        text += f" by one seed (differences below {least:.2g})" if results.seeds == 1 else f" by {results.seeds} seeds"
    return f"{text}. Last: {ranked[-1]}, {shown(there[ranked[-1]])}."
