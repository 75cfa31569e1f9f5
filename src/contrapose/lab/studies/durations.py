"""Look up how long a study's runs took, in the records of existing runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from contrapose.lab.studies.files import data_name
from contrapose.lab.studies.run_directory import RunDirectory
from contrapose.lab.training import Run

# Settings that determine how long an epoch takes, by their names in run.json; runs with equal values take equally long.
_SPEED = (
    "limit", "imbalance", "views", "size", "view_count", "encoder", "framework", "symmetric", "norm_splits", "batch",
    "accumulate", "contrast", "precision",
)  # fmt: skip
_SAME_SIZE = {"cifar100": "cifar10"}  # data sets that have as many images of the same size as another data set


@dataclass(frozen=True)
class RecordedRun:
    """How long a finished run took."""

    seconds: float  # training time, without evaluations
    epochs: int
    device: str
    shared: bool  # whether another run used the device at the same time


@dataclass(frozen=True)
class Durations:
    """Durations of the finished runs in some directories."""

    by_run: Mapping[str, RecordedRun]  # keyed by the settings, without the path of the data
    by_speed: Mapping[str, Sequence[RecordedRun]]  # keyed by the settings that determine the time per epoch

    @classmethod
    def read(cls, roots: Iterable[Path]) -> Durations:
        """Read the records of all runs in some directories; if a run has two records, the newer one is used."""
        by_run: dict[str, tuple[float, RecordedRun]] = {}
        by_speed: dict[str, list[RecordedRun]] = {}
        for path in [path for root in roots for path in root.glob("*/records.jsonl")]:
            settings, recorded = RunDirectory(path.parent).settings(), _recorded(RunDirectory(path.parent))
            if recorded is None or not settings:
                continue
            name, written = _identity(settings), path.stat().st_mtime
            if name not in by_run or by_run[name][0] < written:
                by_run[name] = written, recorded
            by_speed.setdefault(_speed(settings), []).append(recorded)
        return cls({name: recorded for name, (_, recorded) in by_run.items()}, by_speed)

    def of(self, run: Run) -> RecordedRun | None:
        """Return the record of a run, whatever the path of its data was; None if the run has not finished."""
        return self.by_run.get(_identity(run.describe()))

    def estimate(self, run: Run) -> RecordedRun | None:
        """Estimate how long a run will take, from the epochs of similar recorded runs; None if there are none."""
        alike = self.by_speed.get(_speed(run.describe()), ())
        if not alike:
            return None
        # Prefer runs that had the device to themselves.
        chosen = min(alike, key=lambda recorded: recorded.shared)
        like = [recorded for recorded in alike if (recorded.device, recorded.shared) == (chosen.device, chosen.shared)]
        epoch = median(recorded.seconds / recorded.epochs for recorded in like)
        return RecordedRun(seconds=epoch * run.epochs, epochs=run.epochs, device=chosen.device, shared=chosen.shared)


def _recorded(directory: RunDirectory) -> RecordedRun | None:
    records, epochs = directory.records(), directory.settings().get("epochs")
    if not records or records[-1]["epoch"] != epochs:
        return None
    return RecordedRun(
        seconds=sum(record["seconds"] for record in records),
        epochs=len(records),
        device=str(directory.environment().get("device", "an unknown device")),
        shared=any(record.get("beside") for record in records),
    )


def _identity(settings: Mapping[str, Any]) -> str:
    """Return the settings as text, with only the name of the data: cifar10 for data/cifar10.npz."""
    return json.dumps({**settings, "data": _name(settings)}, sort_keys=True)


def _speed(settings: Mapping[str, Any]) -> str:
    size = _SAME_SIZE.get(_name(settings), _name(settings))
    return json.dumps([size, *(settings.get(setting) for setting in _SPEED)])


def _name(settings: Mapping[str, Any]) -> str:
    return data_name(str(settings.get("data", "")))
