"""Evaluations on data that the user gives with --data NAME=PATH."""

from __future__ import annotations

from dataclasses import dataclass

from contrapose.lab.studies.measures.measure import Evaluation

MADE = "made"  # given instead of a path, it requests a small generated data set
SUPERVISED = "supervised"  # the name of a file of weights
CLASS_NAMES_FILE = "class_names"


@dataclass(frozen=True)
class DownstreamEvaluation(Evaluation):
    """An evaluation on data other than the run's own, which may need a further file."""

    data_set: str  # the NAME in --data NAME=PATH

    @property
    def files(self) -> tuple[str, ...]:
        """Return the names of files that the evaluation needs in addition to the data."""
        return ()

    @property
    def needs_data(self) -> tuple[str, ...]:
        """Return the names of the data and of the files."""
        return (self.data_set, *self.files)

    @property
    def synthetic_data(self) -> tuple[str, ...]:
        """Return all of these names except the weights, which cannot be generated."""
        return tuple(name for name in self.needs_data if name != SUPERVISED)


def weights_file(weights: str) -> tuple[str, ...]:
    """Return the name of the file of "supervised" weights; empty if the weights are the run's own."""
    return (SUPERVISED,) if weights == SUPERVISED else ()
