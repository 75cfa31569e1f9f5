"""Read the files of one run. This module neither trains nor depends on measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from contrapose.lab.training.records.files import read_object, read_records

_FILES = ("run.json", "environment.json", "evaluations.json", "failure.json")


class Reading(NamedTuple):
    """A run's value, if it has one, and a description of what was measured instead if an older version wrote it."""

    value: float | None = None
    older_form: str = ""


@dataclass(frozen=True)
class RunDirectory:
    """The directory of one run: its settings, records, evaluations and failure, if they exist."""

    folder: Path

    def records(self) -> list[dict[str, Any]]:
        """Return one record per epoch."""
        return read_records(self.folder)

    def evaluations(self) -> dict[str, Any]:
        """Return the evaluations made after training, keyed by measure; empty if missing or unreadable, so they are repeated."""
        return self._read("evaluations.json")

    def damaged_files(self) -> list[str]:
        """Return a message for each unreadable file; the other methods treat such files as missing."""
        messages = []
        for name in _FILES:
            try:
                read_object(self.folder / name)
            except ValueError as error:
                messages.append(str(error))
        return messages

    def failure(self) -> str:
        """Return why the run failed; empty if it did not fail."""
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

        A run that was extended to more epochs counts as a different run, since its last record is for a later epoch.
        """
        records, checkpoints = self.records(), self.folder / "checkpoints"
        if not records or records[-1]["epoch"] != epochs:
            return False
        steps = [path.name.removeprefix("step-") for path in checkpoints.glob("step-*") if path.is_dir()]
        # If the run was killed between its last record and its last checkpoint, the weights on disk are from an earlier epoch.
        return not checkpoints.is_dir() or records[-1]["step"] in [int(step) for step in steps if step.isdigit()]

    def value(self, key: str) -> float | None:
        """Return a number from the evaluations or the last record; None if neither has it yet."""
        return self.first_value({key: ""}).value

    def first_value(self, keys: Mapping[str, str]) -> Reading:
        """Return the value of the first of these keys, {key: older form}, found in the evaluations or the last record."""
        entries = {**(self.records() or [{}])[-1], **self.evaluations()}
        value, form = next(((entries[key], form) for key, form in keys.items() if key in entries), (None, ""))
        if isinstance(value, bool) or not isinstance(value, int | float):  # a bool is an int in Python
            return Reading()
        return Reading(float(value), form)

    def sampled_images(self) -> str:
        """Describe the images on which the recorded metrics are measured."""
        settings = self.settings()
        kind = "training" if settings.get("metrics_on") == "train" else "test"
        count = settings.get("metrics", 0)
        return f"a sample of {count:,} {kind} images" if isinstance(count, int) else f"a sample of {kind} images"

    def _read(self, name: str) -> dict[str, Any]:
        """Return the content of a JSON file; empty if the file does not exist or is damaged (see `damaged_files`)."""
        try:
            return read_object(self.folder / name)
        except ValueError:
            return {}
