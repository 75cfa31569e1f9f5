"""What the commands on a run share: its data and number of neighbours, and notes to stderr."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from contrapose.lab.counts import count_of
from contrapose.lab.evaluation.feature_scores import scored_sources
from contrapose.lab.modalities import Split
from contrapose.lab.training import Model, prepare_other
from contrapose.lab.training.locks import is_locked
from contrapose.lab.training.records.past_run import RunProgress
from contrapose.lab.training.sources import load_own_data


def print_error(text: str) -> None:
    """Print a line to stderr, since stdout may be read by other programs."""
    print(text, file=sys.stderr)


def print_notes(split: Split) -> None:
    """Print the notes about a data set to stderr, since stdout may be read by other programs."""
    for note in split.notes:
        print_error(note)


def warn_if_unfinished(model: Model, folder: Path) -> bool:
    """Print a sentence to stderr if the newest weights of a run are not from its last step; return whether that is the case."""
    progress = RunProgress.read(folder, model.run.describe(), model.step)
    if progress.finished:
        return False
    what, advice = "is not finished", "; run the same `contrapose train` command again to resume"
    if is_locked(folder):
        what, advice = "is still in training", ""
    print(f"contrapose: {folder} {what}: its newest weights were trained for {progress}{advice}", file=sys.stderr)
    return True


def load_data(
    model: Model,
    folder: Path,
    data: str,
    root: Path,
    *,
    columns: tuple[str, ...] = (),
    skip_broken: bool = False,
    stream: bool = False,
) -> Split:
    """Load `data` or, if `data` is empty, the data that the run in `folder` was trained on; print notes about it to stderr."""
    run = replace(model.run, skip_broken=model.run.skip_broken or skip_broken)
    if data:
        split = prepare_other(run, data, root, folder=folder, stream=stream, columns=columns)
    else:
        split = load_own_data(run, folder, root, lambda text: print(f"contrapose: {text}", file=sys.stderr))
    print_notes(split)
    return split


def choose_neighbours(model: Model, split: Split, knn: int = 0) -> int:
    """Return the number of neighbours for kNN; print a note to stderr if it is not the run's setting because samples are few.

    model   model of a run
    split   data sets on which the run is evaluated
    knn     the user's choice, which is refused if there are fewer training samples; 0: none
    """
    sources = scored_sources(split)
    most = len(sources[0]) if sources is not None and split.retrieval is None else knn or model.run.knn
    if knn > most:
        raise ValueError(f"knn: expected at most {most} neighbours, the number of training samples, got {knn}")
    if not knn and model.run.knn > most:
        samples = count_of(most, "training sample")
        print_error(f"knn: {count_of(most, 'neighbour')} in place of the run's {model.run.knn}: the data has {samples}")
    return min(knn or model.run.knn, most)
