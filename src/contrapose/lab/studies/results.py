"""Results of a study: the values of its quantities, and the records and evaluations behind them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import mean, stdev
from typing import Any

from contrapose.lab.studies.measures import Measure


@dataclass(frozen=True)
class Cell:
    """The values of one quantity, one per seed, and the names of the runs."""

    values: tuple[float, ...] = ()
    runs: tuple[str, ...] = ()
    missing_reasons: tuple[str, ...] = ()  # why a seed has no value
    older_forms: tuple[str, ...] = ()  # what older runs measured instead, such as "a sample of 2,000 test images"
    errors: tuple[float, ...] = ()  # standard error of each value, if it is a mean over sampled anchors

    def negated(self) -> Cell:
        """Return the cell with all values negated."""
        return replace(self, values=tuple(-value for value in self.values))

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
    """Return the column heading of a quantity on a data set; the paper's number is stored under the same text."""
    return f"{quantity} {data_set}".strip()


@dataclass(frozen=True)
class Results:
    """A study's results: cells keyed by (row, quantity, data set), and records keyed by (row, data set)."""

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
        """Return a cell, by default for the first data set; the cell is empty if nothing has run."""
        if data_set is None:
            data_set = self.sets[0] if self.sets else ""
        return self.cells.get((row, quantity, data_set), Cell())

    def complete(self, rows: Iterable[str], quantity: str, data_set: str) -> bool:
        """Return whether all of these rows that can run have a value."""
        return all(self.cell(row, quantity, data_set).values for row in rows if row in self.rows)

    def curve(self, row: str, measure: Measure, data_set: str) -> list[tuple[float, float]]:
        """Return (epoch, mean over seeds) for a measure in the records."""
        by_epoch: dict[int, list[float]] = {}
        for records in self.records.get((row, data_set), ()):
            for record in records:
                value = measure.in_record(record)
                if value is not None:
                    by_epoch.setdefault(record["epoch"], []).append(value)
        return [(float(epoch), mean(values)) for epoch, values in sorted(by_epoch.items())]
