"""What runs have left behind, read from their directories: nothing here trains."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any


@dataclass(frozen=True)
class Cell:
    """The values of one quantity, a seed each, and the runs that they are of."""

    values: tuple[float, ...] = ()
    runs: tuple[str, ...] = ()
    holes: tuple[str, ...] = ()  # why a value is not there

    @property
    def mean(self) -> float:
        """The mean over seeds; NaN where there is none."""
        return mean(self.values) if self.values else math.nan

    @property
    def spread(self) -> float:
        """The standard deviation over seeds; 0 for one."""
        return stdev(self.values) if len(self.values) > 1 else 0.0


def column(quantity: str, on: str) -> str:
    """The heading of a quantity on a data set."""
    return f"{quantity} {on}".strip()


@dataclass(frozen=True)
class Results:
    """What a study's runs gave: cells by (row, quantity, data set), and the records behind them by (row, data set)."""

    scale: str = "smoke"
    seeds: int = 1
    sets: tuple[str, ...] = ()  # those that were measured
    rows: frozenset[str] = frozenset()  # those that can run
    cells: Mapping[tuple[str, str, str], Cell] = field(default_factory=dict)
    records: Mapping[tuple[str, str], tuple[list[dict[str, Any]], ...]] = field(default_factory=dict)  # by seed
    evaluations: Mapping[tuple[str, str], tuple[dict[str, Any], ...]] = field(default_factory=dict)

    def cell(self, row: str, quantity: str, on: str | None = None) -> Cell:
        """A cell, of the first data set if none is named; empty where nothing ran."""
        where = on if on is not None else self.sets[0] if self.sets else ""
        return self.cells.get((row, quantity, where), Cell())

    def complete(self, rows: Iterable[str], quantity: str, on: str) -> bool:
        """Whether every one of these rows that can run has a value."""
        return all(self.cell(row, quantity, on).values for row in rows if row in self.rows)

    def curve(self, row: str, measure: str, on: str) -> list[tuple[float, float]]:
        """(epoch, mean over seeds) of an entry of the records."""
        sign, key = (-1, measure[1:]) if measure.startswith("-") else (1, measure)
        found: dict[int, list[float]] = {}
        for records in self.records.get((row, on), ()):
            for record in records:
                if record.get(key) is not None:
                    found.setdefault(record["epoch"], []).append(sign * record[key])
        return [(float(epoch), mean(values)) for epoch, values in sorted(found.items())]


@dataclass(frozen=True)
class Left:
    """What one run has left in its directory."""

    folder: Path

    def records(self) -> list[dict[str, Any]]:
        """One entry for each epoch; a half-written last line is not there."""
        path = self.folder / "records.jsonl"
        found = []
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                found.append(json.loads(line))
            except ValueError:
                break
        return found

    def evaluations(self) -> dict[str, Any]:
        """What was evaluated after training."""
        return self._read("evaluations.json")

    def failure(self) -> str:
        """Why it failed; empty: it did not."""
        return str(self._read("failure.json").get("why", ""))

    def environment(self) -> dict[str, Any]:
        """Machine and versions."""
        return self._read("environment.json")

    def settings(self) -> dict[str, Any]:
        """Its description."""
        return self._read("run.json")

    def trained(self, epochs: int) -> bool:
        """Whether its last epoch is recorded and, where checkpoints are kept, saved."""
        records, saved = self.records(), self.folder / "checkpoints"
        if not records or int(records[-1]["epoch"]) < epochs:
            return False
        steps = [path.name.removeprefix("step-") for path in saved.glob("step-*") if path.is_dir()]
        return not saved.is_dir() or records[-1]["step"] in [int(step) for step in steps if step.isdigit()]

    def value(self, measure: str) -> float | None:
        """A number of its last record or of its evaluations; None where it is not there yet."""
        sign, key = (-1, measure[1:]) if measure.startswith("-") else (1, measure)
        records = self.records()
        if key == "step_seconds":
            found: Any = _step_seconds(records)
        else:
            found = self.evaluations().get(key, records[-1].get(key) if records else None)
        if isinstance(found, bool) or not isinstance(found, int | float):
            return None
        return sign * float(found)

    def _read(self, name: str) -> dict[str, Any]:
        path = self.folder / name
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found


def _step_seconds(records: list[dict[str, Any]]) -> float | None:
    """Seconds of a step, the median epoch's; none of a run that shared its device."""
    if not records or any(record.get("beside") for record in records):
        return None
    steps = records[0]["step"]
    seconds = sorted(record["seconds"] for record in records)
    return float(seconds[len(seconds) // 2] / max(1, steps))
