"""Read the results of runs from their directories. Nothing here trains."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from contrapose.lab.modalities import AUGMENTATIONS
from contrapose.lab.studies.downstream import data_key, downstream_names, paths_of
from contrapose.lab.training.records import read_object, read_records

_FILES = ("run.json", "environment.json", "evaluations.json", "failure.json")


@dataclass(frozen=True)
class Cell:
    """The values of one quantity, one per seed, and the names of their runs."""

    values: tuple[float, ...] = ()
    runs: tuple[str, ...] = ()
    missing_reasons: tuple[str, ...] = ()  # why a seed has no value
    older_forms: tuple[str, ...] = ()  # what older runs measured instead, such as "a sample of 2,000 test images"
    errors: tuple[float, ...] = ()  # standard error of each value, if it is a mean over sampled anchors

    @property
    def mean(self) -> float:
        """Return the mean over seeds; NaN without values."""
        return mean(self.values) if self.values else math.nan

    @property
    def spread(self) -> float:
        """Return the standard deviation over seeds; 0 for a single seed."""
        return stdev(self.values) if len(self.values) > 1 else 0.0

    @property
    def error(self) -> float:
        """Return the sampling error of the mean; 0 if there is none."""
        return math.hypot(*self.errors) / len(self.errors) if self.errors else 0.0


def column(quantity: str, data_set: str) -> str:
    """Return the heading of a quantity on a data set, which is also the key of a printed number."""
    return f"{quantity} {data_set}".strip()


def error_name(measure: str) -> str:
    """Return the name of the standard error of a measure: an evaluation "metric:NAME:…" or an entry of the records."""
    kind, *options = measure.removeprefix("-").split(":")
    return ":".join((kind, f"{options[0]}_error", *options[1:])) if options else f"{kind}_error"


def older_names(measure: str, sample: str) -> dict[str, str]:
    """Return the names under which older runs may hold a measure of the same output, each with what it is of.

    The records have NAME (of the projector) and encoder_NAME, both of a sample. Runs before metrics named their space have
    NAME_whole (of the projector, all test images). The text is empty for the images of the measure itself. Runs before probes
    saw augmented images have a probe of plain ones.

    sample   the images of the records, in words
    """
    kind, *options = measure.split(":")
    if kind.startswith("linear"):
        probe, _, augment = options[0].rpartition("-")
        plain = ":".join((kind.replace("_best", ""), probe, *options[1:]))
        return {plain: "a probe of images without augmentation, last epoch"} if augment in AUGMENTATIONS else {}
    if kind != "metric":
        return {}
    name, space, images = options
    if space == "encoder":
        return {f"encoder_{name}": sample}
    return {f"{name}_whole": "" if images == "test" else "all test images", name: sample}


@dataclass(frozen=True)
class Results:
    """Results of a study: cells by (row, quantity, data set), and the records behind them by (row, data set)."""

    scale: str = "smoke"
    seeds: int = 1
    sets: tuple[str, ...] = ()  # names of the data sets that were measured
    rows: frozenset[str] = frozenset()  # names of the rows that can run
    cells: Mapping[tuple[str, str, str], Cell] = field(default_factory=dict)
    records: Mapping[tuple[str, str], tuple[list[dict[str, Any]], ...]] = field(
        default_factory=dict
    )  # one list per seed
    evaluations: Mapping[tuple[str, str], tuple[dict[str, Any], ...]] = field(default_factory=dict)

    def cell(self, row: str, quantity: str, data_set: str | None = None) -> Cell:
        """Return a cell, by default of the first data set; an empty one if nothing has run."""
        if data_set is None:
            data_set = self.sets[0] if self.sets else ""
        return self.cells.get((row, quantity, data_set), Cell())

    def complete(self, rows: Iterable[str], quantity: str, data_set: str) -> bool:
        """Return whether every one of these rows that can run has a value."""
        return all(self.cell(row, quantity, data_set).values for row in rows if row in self.rows)

    def curve(self, row: str, measure: str, data_set: str) -> list[tuple[float, float]]:
        """Return (epoch, mean over seeds) of an entry of the records; a leading "-" in `measure` negates it."""
        sign, key = (-1, measure[1:]) if measure.startswith("-") else (1, measure)
        by_epoch: dict[int, list[float]] = {}
        for records in self.records.get((row, data_set), ()):
            for record in records:
                # A linear probe that is shorter than its own number of epochs has that in its name: "linear:cacr:5".
                name = next((name for name in record if name == key or name.startswith(f"{key}:")), key)
                if record.get(name) is not None:
                    by_epoch.setdefault(record["epoch"], []).append(sign * record[name])
        return [(float(epoch), mean(values)) for epoch, values in sorted(by_epoch.items())]


@dataclass(frozen=True)
class RunDirectory:
    """The directory of one run: its settings, records, evaluations and failure, as far as they exist."""

    folder: Path

    def records(self) -> list[dict[str, Any]]:
        """Return one record per epoch."""
        return read_records(self.folder)

    def evaluations(self) -> dict[str, Any]:
        """Return what was evaluated after training, by name; empty if nothing was, so that it is evaluated again."""
        return self._read("evaluations.json")

    def damaged_files(self) -> list[str]:
        """Return a message for each file that cannot be read, which the other methods take for missing."""
        messages = []
        for name in _FILES:
            try:
                read_object(self.folder / name)
            except ValueError as error:
                messages.append(str(error))
        return messages

    def holds(self, measure: str, downstream: Mapping[str, str]) -> bool:
        """Return whether a measure was evaluated, and on this downstream data if it needs any: {name: path}."""
        evaluations = self.evaluations()
        same_data = evaluations.get(data_key(measure), {}) == paths_of(measure, downstream)
        return measure.removeprefix("-") in evaluations and same_data

    def failure(self) -> str:
        """Return why the run failed; empty if it did not."""
        unreadable = "failure.json cannot be read" if (self.folder / "failure.json").exists() else ""
        return str(self._read("failure.json").get("why", unreadable))

    def environment(self) -> dict[str, Any]:
        """Return the machine and the versions that the run recorded."""
        return self._read("environment.json")

    def settings(self) -> dict[str, Any]:
        """Return the settings of the run."""
        return self._read("run.json")

    def trained(self, epochs: int) -> bool:
        """Return whether the last epoch is recorded and, if checkpoints are kept, saved.

        A run that was extended to more epochs is another one: its last record is not that of these epochs.
        """
        records, checkpoints = self.records(), self.folder / "checkpoints"
        if not records or records[-1]["epoch"] != epochs:
            return False
        steps = [path.name.removeprefix("step-") for path in checkpoints.glob("step-*") if path.is_dir()]
        # Killed between the last record and the last checkpoint, the weights on disk are those of an earlier epoch.
        return not checkpoints.is_dir() or records[-1]["step"] in [int(step) for step in steps if step.isdigit()]

    def value(self, measure: str) -> float | None:
        """Return a number from the evaluations or the last record; None if there is none yet.

        A leading "-" in `measure` negates it; "best:NAME" is the largest NAME of all records that have it.
        """
        return self.value_and_form(measure)[0]

    def value_and_form(self, measure: str) -> tuple[float | None, str]:
        """Return `value`, and what it is of if an older run measured it in another form; empty if it did not."""
        sign, key = (-1, measure[1:]) if measure.startswith("-") else (1, measure)
        if key == "step_seconds":
            found: Any = _step_seconds(self.records())
            older_form = ""
        elif key.startswith("best:"):
            name = key.removeprefix("best:")
            found = max((record[name] for record in self.records() if record.get(name) is not None), default=None)
            older_form = ""
        else:
            found, older_form = self._find(key)
        if isinstance(found, bool) or not isinstance(found, int | float):  # a bool is an int in Python
            return None, ""
        return sign * float(found), older_form

    def _find(self, key: str) -> tuple[Any, str]:
        """Return an entry of the evaluations or of the last record, by its name or an older one, and its older form."""
        names = {key: "", **older_names(key, self.sampled_images())}
        entries = {**(self.records() or [{}])[-1], **self.evaluations()}
        return next(((entries[name], form) for name, form in names.items() if name in entries), (None, ""))

    def sampled_images(self) -> str:
        """Return the images on which the records measure, in words."""
        settings = self.settings()
        kind = "training" if settings.get("metrics_on") == "train" else "test"
        count = settings.get("metrics", 0)
        return f"a sample of {count:,} {kind} images" if isinstance(count, int) else f"a sample of {kind} images"

    def missing_reason(self, measure: str) -> str:
        """Return why a trained run has no value of a measure, in words."""
        kind, *options = measure.removeprefix("-").split(":")
        if kind == "step_seconds":
            return "timed beside other runs"
        if (
            kind == "metric"
            and options[1] == "encoder"
            and self.value(f"metric:{options[0]}:projector:test") is not None
        ):
            return "recorded of the projector's output only; run the study again to measure the encoder's"
        damaged = [text for text in self.damaged_files() if "evaluations.json" in text]
        if damaged:
            return f"{damaged[0]}; run the study again to evaluate the run again"
        if downstream_names(measure):
            return "not measured on this data yet; run the study again"
        return "there is no such number"

    def _read(self, name: str) -> dict[str, Any]:
        """Return the content of a JSON file; empty if it does not exist or is damaged (see `damaged_files`)."""
        try:
            return read_object(self.folder / name)
        except ValueError:
            return {}


def _step_seconds(records: list[dict[str, Any]]) -> float | None:
    """Return the seconds per step of the median epoch; None for a run that shared its device, whose times mean little."""
    if not records or any(record.get("beside") for record in records):
        return None
    steps = records[0]["step"]
    seconds = sorted(record["seconds"] for record in records)
    return float(seconds[len(seconds) // 2] / max(1, steps))
