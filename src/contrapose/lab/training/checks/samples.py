"""Check the settings that depend on a run's data: the number of samples, and whether they have labels."""

from __future__ import annotations

import math

from contrapose.lab.frameworks import FRAMEWORKS
from contrapose.lab.modalities import Split
from contrapose.lab.training.checks.frameworks import check_hardest
from contrapose.lab.training.records.extra_metrics import check_record
from contrapose.lab.training.run import Run


def check_samples(run: Run, split: Split) -> None:
    """Raise ValueError if batches, neighbours or negatives need more samples than the data has, or if labels are missing."""
    size, noun = len(split.train), run.kind.sample_noun(split.train)
    _check_batch(run, size, noun, held_out=split.test is not None)
    ids = split.train.ids
    if ids is not None and bool((ids == ids[0]).all()):
        raise ValueError(f"data: all {size} {noun} in {run.data} are equal, so none is a negative of another")
    if run.needs_labels and split.train.labels is None:
        raise ValueError(f"loss: {run.loss} needs labels, but the training {noun} in {run.data} have none")
    if split.probe is not None and run.knn > len(split.probe):
        labelled = len(split.probe)
        raise ValueError(
            f"knn: {run.knn} neighbours are more than the {labelled} labelled {noun} (--knn {max(1, labelled // 4)} would do)"
        )
    if run.views == "columns" and run.view_count > 2 and run.framework != "simcse":
        raise ValueError(
            f"framework: {run.framework} would take the negatives of {run.data} for positives; use --framework simcse, or two "
            "--columns"
        )
    if run.extra_metrics and run.kind.tower_count > 1:
        raise ValueError(
            f"extra_metrics: {run.extra_metrics[0]} is for runs with one encoder, but a run on {run.kind.noun} has two"
        )
    check_record(run.extra_metrics, split, run.batch, run.kind.recorded)
    # The bank is as large as the data set, so this cannot be checked before the data is known.
    if FRAMEWORKS[run.framework].negatives(run, run.view_maker().count) is None:
        check_hardest(run, size - 1)


def _check_batch(run: Run, size: int, noun: str, *, held_out: bool) -> None:
    step = run.batch * run.accumulate
    if step > size:
        fits = 2 ** int(math.log2(max(2, size // run.accumulate)))
        advice = f"--batch {fits} would do"
        if size < 2:
            advice = "a batch has at least 2: add more" + (", or hold out none with --hold-out 0" if held_out else "")
        raise ValueError(f"batch: a step needs {step} {noun}, but the data set has only {size} ({advice})")
    if step * run.epoch_slices > size:
        raise ValueError(
            f"epoch_slices: {run.epoch_slices} slices of {size} {noun} are too small for a step of {step} "
            f"(--epoch-slices {size // step} would do)"
        )
