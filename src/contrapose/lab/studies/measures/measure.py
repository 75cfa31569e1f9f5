"""Define what a measure is: one number about a run, or the data for one drawing.

    Measure      a key in the records or evaluations of a run, how to read its value, and a description
    Evaluation   a measure computed after training, on the run's data or on the user's
    Context      what an evaluation is computed from

A study may define its own measure next to its rows: there is no list of all measures. Recorded results contain the keys, so
keys never change.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from contrapose.lab.modalities import Split
from contrapose.lab.studies.run_directory import Reading, RunDirectory
from contrapose.lab.training import Model, Run


def hits_as_text(hits: Tensor) -> str:
    """Return a digit for each test sample: 1 if it is a hit, else 0."""
    return "".join(str(int(hit)) for hit in hits.tolist())


class Words(NamedTuple):
    """A measure in words: `what` is measured, and `of` what. Measures that differ only in `what` are described together."""

    what: str
    of: str = ""

    @property
    def text(self) -> str:
        """Return both fields as one text."""
        return f"{self.what}{self.of}"


@dataclass(frozen=True)
class Context:
    """What an evaluation is computed from: a trained model, the data of its run, and data that the user gives."""

    model: Model
    split: Split
    downstream: Mapping[str, str] = field(default_factory=dict)  # paths, keyed by the names in `needs_data`
    data_root: Path | None = None  # directory of downloads


@dataclass(frozen=True)
class Measure:
    """One number about a run, or the data for one drawing."""

    kind: ClassVar[str] = ""  # the first part of the key
    summary: ClassVar[Words] = Words("")  # the description, if it is the same for all runs
    is_number: ClassVar[bool] = True  # a drawing has no column in a table

    @property
    def key(self) -> str:
        """Return the key of the value in a run's files: the kind and the fields, KIND:FIELD:FIELD."""
        parts = (self.kind, *(getattr(self, own.name) for own in fields(self)))
        return ":".join(str(part) for part in parts if part)

    def describe(self, run: Run) -> Words:
        """Describe what is measured in a run: the quantity, which output, and which images."""
        return self.summary

    @property
    def needs_data(self) -> tuple[str, ...]:
        """Return the names of the data that the user must give with --data NAME=PATH."""
        return ()

    @property
    def synthetic_data(self) -> tuple[str, ...]:
        """Return the names in `needs_data` for which the smoke scale generates a small set if the user gives no data."""
        return ()

    def missing_data(self, given: Mapping[str, str]) -> str:
        """Return the option that would give the missing data; empty if no data is missing."""
        missing = [f"{name}=PATH" for name in self.needs_data if name not in given]
        return f"not given; --data {' '.join(missing)}" if missing else ""

    def at_smoke_scale(self) -> Measure:
        """Return the measure for the smoke scale, with its own key if it differs."""
        return self

    def on_built_in_data(self) -> Measure | None:
        """Return the same measure on built-in data, for the smoke scale without user data; None if there is no built-in data."""
        return None

    def older_keys(self, sample: str) -> dict[str, str]:
        """Return the keys under which older runs may store a measure of the same output, each with a description of that measure.

        sample   the images of the records, in words
        """
        return {}

    def read(self, directory: RunDirectory) -> Reading:
        """Return the value in a run's directory, from its evaluations or its last record."""
        return directory.first_value({self.key: "", **self.older_keys(directory.sampled_images())})

    def read_error(self, directory: RunDirectory) -> float | None:
        """Return the standard error if the measure is a mean over sampled anchors; otherwise None."""
        return directory.value(f"{self.key}_error")

    def in_record(self, record: Mapping[str, Any]) -> float | None:
        """Return the value in the record of an epoch; None if the record does not have it."""
        return record.get(self.key)

    def missing_reason(self, directory: RunDirectory) -> str:
        """Return why a trained run has no value, in words."""
        damaged = [text for text in directory.damaged_files() if "evaluations.json" in text]
        if damaged:
            return f"{damaged[0]}; run the study again to evaluate the run again"
        if self.needs_data:
            return "not measured on this data yet; run the study again"
        return "there is no such number"


@dataclass(frozen=True)
class Evaluation(Measure, ABC):
    """A measure that is computed once after training and stored in the run's directory."""

    towers: ClassVar[int] = 1  # number of encoders in the run: 2 for images with captions

    @abstractmethod
    def evaluate(self, context: Context) -> dict[str, Any]:
        """Return the value, and other values that the same computation gives, keyed by measure."""

    def take(self, context: Context) -> dict[str, Any]:
        """Return the values of `evaluate`, each with the paths of its data, since the value depends on the data."""
        model, paths = context.model, self._paths(context.downstream)
        if len(model.towers) != self.towers:
            towers = f"encoders of {' and '.join(model.towers)}" if len(model.towers) > 1 else "one encoder"
            raise ValueError(
                f"measures: {self.key} cannot be computed for a run on {model.run.data}, which has {towers}"
            )
        values = self.evaluate(context)
        return values | ({_data_key(key): paths for key in values} if paths else {})

    def is_taken(self, directory: RunDirectory, downstream: Mapping[str, str]) -> bool:
        """Return whether a run has the value and, if the measure needs data, has it for this `downstream` data, {name: path}."""
        evaluations = directory.evaluations()
        return self.key in evaluations and evaluations.get(_data_key(self.key), {}) == self._paths(downstream)

    def _paths(self, given: Mapping[str, str]) -> dict[str, str]:
        return {name: given[name] for name in self.needs_data if name in given}


def _data_key(key: str) -> str:
    """Return the key under which the paths of a value's data are stored."""
    return f"{key}:data"
