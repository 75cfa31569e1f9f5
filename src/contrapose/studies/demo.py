"""`contrapose demo`: the uniformity-tolerance dilemma on the built-in digits, in a few minutes on a CPU.

All losses start from the same encoder, trained briefly with NT-Xent at τ = 0.2, so that a run of seconds shows what each
loss prefers rather than how fast it starts.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from contrapose.modalities import Split
from contrapose.studies.claims import is_monotonic
from contrapose.studies.dilemma import count_epochs, describe, rows_of, show_dilemma
from contrapose.studies.scores import KNN
from contrapose.studies.study import Plan, Row, Study, StudyData
from contrapose.training import Run, Trainer
from contrapose.training.threads import available_cores

TEMPERATURES = (0.1, 0.2, 0.3, 0.5, 1.0)
OTHER_LOSSES = {
    "DySTreSS": "dystress",
    "hard contrastive": "hard_contrastive(temperature=0.5)",
    "CACR": "cacr",
    "balanced": "balanced",
}
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

    def seconds(self, step_seconds: float, jobs: int, seeds: int = 1) -> float:
        """Estimate how long the demo takes, from the seconds of a training step."""
        steps = self.digits // int(PRETRAINING["batch"])
        runs = seeds * (len(TEMPERATURES) + len(OTHER_LOSSES))
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
    """Measure the seconds of a training step of each of `jobs` concurrent runs, in about a second."""
    # With one thread per core divided by the jobs, one run is as fast here as each of them will be beside the others.
    threads = max(1, available_cores() // jobs)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(**{**PRETRAINING, "limit": 256, "epochs": 2, "knn_every": 2, "metrics": 0, "threads": threads})
        Trainer(run, Path(folder), say=lambda text: None, fast=False).train()
        records = [json.loads(line) for line in (Path(folder) / "records.jsonl").read_text().splitlines()]
    return float(records[-1]["seconds"]) / (256 // int(PRETRAINING["batch"]))  # the first epoch is a warm-up


def largest_size(step_seconds: float, jobs: int, minutes: float, seeds: int = 1) -> Size:
    """Return the largest size that takes at most so many minutes; the smallest if none does."""
    return next((size for size in SIZES if size.seconds(step_seconds, jobs, seeds) <= 60 * minutes), SIZES[-1])


_NT_XENT_POINTS = [(tau, f"NT-Xent τ = {tau:g}") for tau in TEMPERATURES]
INTRODUCTION = (
    "A contrastive loss pushes images apart. If it pushes all of them evenly, they spread over the whole sphere (uniformity,"
    " -U), and images of one class are separated too; if it pushes less, classes stay together (tolerance, T), and much of the"
    " sphere is unused. The temperature of NT-Xent moves along that line; the losses of the four papers look for something"
    " better than a point on it."
)


def demo(weights: Path, size: Size, split: Split) -> Plan:
    """Return the plan of the demo: NT-Xent at five temperatures and four other losses, from the same encoder."""
    rows = [
        Row(name=name, changes={"loss": f"nt_xent(temperature={tau:g})"}, x=tau, series="NT-Xent")
        for tau, name in _NT_XENT_POINTS
    ]
    # Maps of the embedding are drawn for the lowest and the highest temperature.
    rows = [replace(row, measures=("map",) if row.x in (TEMPERATURES[0], TEMPERATURES[-1]) else ()) for row in rows]
    rows += [Row(name=name, changes={"loss": loss}) for name, loss in OTHER_LOSSES.items()]
    base = {**size.settings, "init": str(weights)}
    description = describe(Run(**base), split)
    pretraining = count_epochs(size.pretraining_epochs)
    start = (
        f"All losses start from one encoder, trained for {pretraining} with NT-Xent at τ = 0.2: this compares continuations of"
        " one training, not trainings from scratch. Below τ = 0.1 they are too short."
    )
    study = Study(
        name="demo",
        title="Uniformity, tolerance and accuracy",
        claim="Low temperatures spread images, high temperatures keep classes together.",
        rows=rows_of(rows),
        quantities=KNN.quantities,
        sets=(StudyData(name="digits", data="digits"),),
        show=partial(show_dilemma, description=replace(description, settings=f"{description.settings} {start}")),
        claims=(
            is_monotonic(_NT_XENT_POINTS, "-U", up=False, margin=0.1, what="uniformity of NT-Xent, along τ,"),
            is_monotonic(_NT_XENT_POINTS, "T", up=True, margin=0.05, what="tolerance of NT-Xent, along τ,"),
        ),
        base=base,
    )
    return Plan(study=study, scale="own", sets=study.sets)
