"""`contrapose demo`: the uniformity-tolerance dilemma on small images of digits, in five minutes on two slow cores.

All losses start from the same encoder, trained with NT-Xent at τ = 1, where classes stay together. A run of a few seconds then
shows where each loss moves the encoder, rather than how fast it starts.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from contrapose.lab.counts import count_of
from contrapose.lab.modalities import Split
from contrapose.lab.report.document import Chart, Document, Section, Text
from contrapose.lab.studies.claims import HOLDS, TOO_SHORT, Claim, Verdict, is_monotonic
from contrapose.lab.studies.collect import document, verdicts
from contrapose.lab.studies.loss_comparison import describe, learned, rows_of, show_comparison
from contrapose.lab.studies.measures import Map
from contrapose.lab.studies.results import Results
from contrapose.lab.studies.scores import KNN
from contrapose.lab.studies.study import Plan, Row, Study, StudyData
from contrapose.lab.training import Run, Trainer
from contrapose.lab.training.records.files import read_records

DATA = "digits16"
TEMPERATURES = (0.1, 0.2, 0.3, 0.5, 1.0)
START_TEMPERATURE = 1.0  # of the encoder that all losses start from
OTHER_LOSSES = {
    "DySTreSS": "dystress",
    "hard contrastive": "hard_contrastive(temperature=0.5)",
    "CACR": "cacr",
    "balanced": "balanced",
}


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much the demo trains."""

    digits: int
    pretraining_epochs: int  # of the encoder that all losses start from
    epochs: int  # per loss, starting from that encoder
    seeds: int  # per loss
    conclusive: bool = True  # whether training is long enough to show the dilemma, according to measurements

    @property
    def _shared(self) -> Mapping[str, Any]:
        return {"data": DATA, "limit": self.digits}

    def pretraining_run(self) -> Run:
        """Return the run that trains the common encoder."""
        epochs = self.pretraining_epochs
        loss = f"nt_xent(temperature={START_TEMPERATURE:g})"
        return Run(**self._shared, loss=loss, epochs=epochs, knn_every=epochs, metrics=0)

    @property
    def settings(self) -> Mapping[str, Any]:
        """Return the settings that all losses share."""
        # One thread per run: one run per core is faster than runs that share the cores.
        return {**self._shared, "epochs": self.epochs, "knn_every": self.epochs, "metrics": self.digits, "threads": 1}

    def seconds(self, step_seconds: float, jobs: int) -> float:
        """Estimate the duration of the demo from the duration of a training step in one thread."""
        steps = self.digits // self.pretraining_run().batch
        runs = self.seeds * (len(TEMPERATURES) + len(OTHER_LOSSES))
        # Evaluation, start-up and contention for memory between concurrent runs take a quarter of the time.
        return 1.3 * step_seconds * steps * (self.pretraining_epochs + self.epochs * math.ceil(runs / jobs)) + 10


# From the size shown in the README down to a quick trial of the command. The starting encoder has a different name in each
# size, so that an interrupted demo finds the right one.
SIZES = (
    Size(digits=2000, pretraining_epochs=30, epochs=5, seeds=3),
    Size(digits=2000, pretraining_epochs=24, epochs=5, seeds=1),
    Size(digits=256, pretraining_epochs=4, epochs=2, seeds=1, conclusive=False),
)


def measure_step_seconds() -> float:
    """Measure the duration of a training step in one thread; this takes about two seconds."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(data=DATA, limit=512, epochs=2, knn_every=2, metrics=0, threads=1)
        Trainer(run, Path(folder), log=lambda text: None, fast=False).train()
        records = read_records(Path(folder))
    return float(records[-1]["seconds"]) / (512 // run.batch)  # the first epoch is a warm-up


def largest_size(sizes: tuple[Size, ...], step_seconds: float, jobs: int, minutes: float) -> Size:
    """Return the largest size that takes at most `minutes`; the smallest if none does."""
    return next((size for size in sizes if size.seconds(step_seconds, jobs) <= 60 * minutes), sizes[-1])


def unless_too_short(claim: Claim, size: Size) -> Claim:
    """Return the claim with the outcome "too short to tell" if it does not hold and the demo's size is not conclusive."""

    def judge(results: Results) -> Verdict:
        verdict = claim(results)
        return verdict if size.conclusive or verdict.outcome == HOLDS else replace(verdict, outcome=TOO_SHORT)

    return judge


_NT_XENT_POINTS = [(tau, f"NT-Xent τ = {tau:g}") for tau in TEMPERATURES]
_INTRODUCTION = (
    "A contrastive loss pushes images apart. If the loss pushes all images evenly, they spread over the whole sphere"
    " (uniformity, -U), and images of one class are separated too; if it pushes less, classes stay together (tolerance, T), and"
    " much of the sphere is unused. NT-Xent's temperature trades one for the other; the losses in the four papers try to do"
    " better than any temperature."
)


def demo(weights: Path, size: Size, split: Split) -> Plan:
    """Return the plan of the demo: NT-Xent at five temperatures and four other losses, from the same encoder."""
    rows = [
        Row(name=name, changes={"loss": f"nt_xent(temperature={tau:g})"}, x=tau, series="NT-Xent")
        for tau, name in _NT_XENT_POINTS
    ]
    # Maps of the embedding are drawn for the lowest and the highest temperature.
    rows = [replace(row, measures=(Map(),) if row.x in (TEMPERATURES[0], TEMPERATURES[-1]) else ()) for row in rows]
    rows += [Row(name=name, changes={"loss": loss}) for name, loss in OTHER_LOSSES.items()]
    base = {**size.settings, "init": str(weights)}
    description = describe(Run(**base), split)
    pretraining = count_of(size.pretraining_epochs, "epoch")
    start = (
        f"All losses start from one encoder, trained for {pretraining} with NT-Xent at τ = {START_TEMPERATURE:g}: this compares"
        " how they continue one training run, not training from scratch."
    )
    claims = (
        is_monotonic(_NT_XENT_POINTS, "-U", up=False, margin=0.1, what="uniformity of NT-Xent, along τ,"),
        is_monotonic(_NT_XENT_POINTS, "T", up=True, margin=0.05, what="tolerance of NT-Xent, along τ,"),
    )
    study = Study(
        name="demo",
        title="What the picture shows",
        claim=_INTRODUCTION,
        rows=rows_of(rows),
        quantities=KNN.quantities,
        sets=(StudyData(name=DATA, data=DATA),),
        show=partial(show_comparison, description=replace(description, settings=f"{description.settings} {start}")),
        claims=tuple(unless_too_short(claim, size) for claim in claims),
        base=base,
    )
    return Plan(study=study, scale="own", sets=study.sets)


def page(plan: Plan, results: Results, root: Path) -> Document:
    """Return the report, which starts with a summary and the plane of uniformity and tolerance."""
    whole = document(
        [plan], results.seeds, root, title="The uniformity-tolerance dilemma", lead=statement(plan, results)
    )
    main, *others = whole.sections
    planes = tuple(block for block in main.blocks if isinstance(block, Chart))[:1]
    # The page begins with the comparison of losses, so it is not repeated below the picture.
    rest = (Text(learned(plan.study, results)[1:]), *(block for block in main.blocks[1:] if block not in planes))
    opening = Section(title="", blocks=planes, name="demo-plane")
    return replace(whole, sections=(opening, replace(main, blocks=rest), *others), interactive=False)


def statement(plan: Plan, results: Results) -> str:
    """Return a summary in a few sentences: whether temperature trades spread for tolerance, and which loss is ahead."""
    judged = verdicts(plan, results)
    first, last = (name for _, name in (_NT_XENT_POINTS[0], _NT_XENT_POINTS[-1]))
    if all(verdict.outcome == HOLDS for verdict in judged):
        ends = [
            f"{quantity} {verb} from {results.cell(first, quantity).mean:.2f} to {results.cell(last, quantity).mean:.2f}"
            for quantity, verb in (("-U", "falls"), ("T", "rises"))
        ]
        dilemma = (
            "Low temperatures spread images (-U), high temperatures keep classes together (T): from "
            f"τ = {TEMPERATURES[0]:g} to τ = {TEMPERATURES[-1]:g}, {' and '.join(ends)}."
        )
    else:
        dilemma = " ".join(f"{v.outcome[:1].upper()}{v.outcome[1:]}: {v.statement}." for v in judged)
    return f"{dilemma} {learned(plan.study, results)[0]}"
