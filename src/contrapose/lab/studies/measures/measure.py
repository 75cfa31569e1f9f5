"""Define what a measure is: one number of a run, or the data of one drawing.

    Measure      its key in the records or evaluations of a run, its value there, and what it is in words
    Evaluation   a measure that is computed after training, on data of the run or of the user
    Context      what an evaluation is computed from

A study may define a measure of its own beside its rows: nothing lists them all. Keys are those of recorded results, so they
never change.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from contrapose.lab.modalities import Split
from contrapose.lab.studies.run_directory import Reading, RunDirectory
from contrapose.lab.training import Model, Run


class Words(NamedTuple):
    """A measure in words: what is measured, and of what. Measures that differ in the first alone are described together."""

    what: str
    of: str = ""

    @property
    def text(self) -> str:
        """Return both as one text."""
        return f"{self.what}{self.of}"


@dataclass(frozen=True)
class Context:
    """What an evaluation is computed from: a trained model, the data of its run, and data that the user gives."""

    model: Model
    split: Split
    downstream: Mapping[str, str] = field(default_factory=dict)  # paths by the names in `needs_data`
    data_root: Path | None = None  # directory of downloads


@dataclass(frozen=True)
class Measure:
    """One number of a run, or the data of one drawing."""

    kind: ClassVar[str] = ""  # begins the key
    summary: ClassVar[Words] = Words("")  # the words of a measure that is the same for all runs
    is_number: ClassVar[bool] = True  # a drawing has no column in a table

    @property
    def key(self) -> str:
        """Return the name under which a run holds the value: the kind and the fields, KIND:FIELD:FIELD."""
        parts = (self.kind, *(getattr(self, own.name) for own in fields(self)))
        return ":".join(str(part) for part in parts if part)

    def describe(self, run: Run) -> Words:
        """Return what is measured of a run, in words: the quantity, of which output, on which images."""
        return self.summary

    @property
    def needs_data(self) -> tuple[str, ...]:
        """Return the names of the data that the user must give with --data NAME=PATH."""
        return ()

    @property
    def synthetic_data(self) -> tuple[str, ...]:
        """Return the names in `needs_data` of which the smoke scale makes a small set where the user gives none."""
        return ()

    def missing_data(self, given: Mapping[str, str]) -> str:
        """Return which option gives the data that the measure lacks; empty if it lacks none."""
        missing = [f"{name}=PATH" for name in self.needs_data if name not in given]
        return f"not given; --data {' '.join(missing)}" if missing else ""

    def at_smoke_scale(self) -> Measure:
        """Return the measure as it is taken at the smoke scale, under a key of its own if it differs."""
        return self

    def on_built_in_data(self) -> Measure | None:
        """Return the same on built-in data, for the smoke scale without the user's data; None if there is no such data."""
        return None

    def older_keys(self, sample: str) -> dict[str, str]:
        """Return the keys under which older runs may hold a measure of the same output, each with what it is of.

        sample   the images of the records, in words
        """
        return {}

    def read(self, directory: RunDirectory) -> Reading:
        """Return the value in a run's directory, from its evaluations or its last record."""
        return directory.first_value({self.key: "", **self.older_keys(directory.sampled_images())})

    def read_error(self, directory: RunDirectory) -> float | None:
        """Return the standard error of a mean over sampled anchors; None for other measures."""
        return directory.value(f"{self.key}_error")

    def in_record(self, record: Mapping[str, Any]) -> float | None:
        """Return the value in the record of an epoch; None if it has none."""
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
    """A measure that is computed after training, once; the run's directory keeps it."""

    towers: ClassVar[int] = 1  # encoders of the run: 2 for images with captions

    @abstractmethod
    def evaluate(self, context: Context) -> dict[str, Any]:
        """Return the value by its key, and the others that the same computation gives."""

    def take(self, context: Context) -> dict[str, Any]:
        """Return `evaluate` with the paths of the data beside each value: on other data it is another number."""
        model, paths = context.model, self._paths(context.downstream)
        if len(model.towers) != self.towers:
            towers = f"encoders of {' and '.join(model.towers)}" if len(model.towers) > 1 else "one encoder"
            raise ValueError(
                f"measures: {self.key} cannot be computed of a run on {model.run.data}, which has {towers}"
            )
        values = self.evaluate(context)
        return values | ({_data_key(key): paths for key in values} if paths else {})

    def is_taken(self, directory: RunDirectory, downstream: Mapping[str, str]) -> bool:
        """Return whether a run has the value, and on this downstream data if it needs any: {name: path}."""
        evaluations = directory.evaluations()
        return self.key in evaluations and evaluations.get(_data_key(self.key), {}) == self._paths(downstream)

    def _paths(self, given: Mapping[str, str]) -> dict[str, str]:
        return {name: given[name] for name in self.needs_data if name in given}


def _data_key(key: str) -> str:
    """Return the key of the paths of the data that a value was computed on."""
    return f"{key}:data"
