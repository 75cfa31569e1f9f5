"""Settings of a run that depend on its data: how many samples there are, and whether they have labels."""

from __future__ import annotations

import math
from pathlib import Path

from contrapose.lab.evaluation.sentences import read_sts
from contrapose.lab.frameworks import FRAMEWORKS
from contrapose.lab.modalities import Split
from contrapose.lab.training.framework_checks import check_hardest
from contrapose.lab.training.recording import check_record, recorded_measures
from contrapose.lab.training.run import Run


def check_samples(run: Run, split: Split) -> None:
    """Refuse a batch, a number of neighbours or of negatives for which there are too few samples, and losses without labels."""
    size, noun = len(split.train), run.kind.noun
    _check_batch(run, size)
    if run.needs_labels and split.train.labels is None:
        raise ValueError(f"loss: {run.loss} needs labels, and the training {noun} of {run.data} have none")
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
    if run.record and run.modality == "captions":
        raise ValueError(f"record: {run.record[0]} is for runs on images or on text, and {run.data} has captions")
    check_record(run.record, split, run.batch)
    _check_scored_pairs(run)
    # The bank is as large as the data set, so the run alone could not check this.
    if FRAMEWORKS[run.framework].negatives(run, run.view_maker().count) is None:
        check_hardest(run, size - 1)


def _check_scored_pairs(run: Run) -> None:
    """Refuse STS during a training on images, or a file without pairs of split dev, before the first epoch."""
    for measure in recorded_measures(run.record):
        if measure.sts and run.modality != "text":
            raise ValueError(f"record: {measure.text} scores texts, and {run.data} is {run.kind.noun}")
        if measure.sts and not any(pair.split == "dev" for pair in read_sts(Path(measure.sts))):
            raise ValueError(f"record: {measure.sts} has no pairs of split dev, which are scored during a training")


def _check_batch(run: Run, size: int) -> None:
    step, noun = run.batch * run.accumulate, run.kind.noun
    if step > size:
        fits = 2 ** int(math.log2(max(2, size // run.accumulate)))
        raise ValueError(
            f"batch: {step} {noun} for a step are more than the {size} of the data set (--batch {fits} would do)"
        )
    if step * run.parts > size:
        raise ValueError(
            f"parts: {run.parts} parts of {size} {noun} are too small for a step of {step} (--parts {size // step} would do)"
        )
