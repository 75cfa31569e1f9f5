"""Evaluations on data that the user gives with --data NAME=PATH."""

from __future__ import annotations

from dataclasses import dataclass

from contrapose.lab.studies.measures.measure import Evaluation

MADE = "made"  # in place of a path: a small set is generated for the evaluation
SUPERVISED = "supervised"  # the name of a file of weights
CLASS_NAMES_FILE = "class_names"


@dataclass(frozen=True)
class DownstreamEvaluation(Evaluation):
    """An evaluation on other data than the run's, and perhaps with a further file."""

    data_set: str  # the NAME

    @property
    def files(self) -> tuple[str, ...]:
        """Return the names of files that it needs beside the data."""
        return ()

    @property
    def needs_data(self) -> tuple[str, ...]:
        """Return the names of the data and of the files."""
        return (self.data_set, *self.files)

    @property
    def synthetic_data(self) -> tuple[str, ...]:
        """Return all of them but the weights, of which nothing can be made."""
        return tuple(name for name in self.needs_data if name != SUPERVISED)


def weights_file(weights: str) -> tuple[str, ...]:
    """Return the name of the file of "supervised" weights; nothing for those that the run itself has."""
    return (SUPERVISED,) if weights == SUPERVISED else ()
