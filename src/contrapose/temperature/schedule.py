"""Settings as functions of the epoch: a temperature, or the γ of a moving average."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from contrapose.validate import check_number


class Schedule:
    """A number for each epoch, to use as a setting of `Loss`; subclass it and override `at`.

    Times a number, another schedule or a tensor of one temperature per anchor (n,), it is a schedule again:
    `criterion(z1, z2, temperature=CosineSchedule(0.5, 2.0) * individual)`.
    """

    def at(self, epoch: float) -> float:
        """Return the value in an epoch."""
        raise TypeError(f"{type(self).__name__} does not define at(epoch): override it to return a number")

    def __mul__(self, factor: float | Tensor | Schedule) -> Schedule:
        """Return the schedule of the products."""
        return _Product(self, factor)

    __rmul__ = __mul__


@dataclass(frozen=True, eq=False)
class _Product(Schedule):
    """A schedule times a number, a tensor or another schedule."""

    schedule: Schedule
    factor: float | Tensor | Schedule

    def __post_init__(self) -> None:
        if not isinstance(self.factor, Tensor | Schedule):
            check_number("factor", self.factor, above=0.0)

    def at(self, epoch: float) -> Any:
        """Return the product in an epoch: a number, or a tensor if the factor is one."""
        return self.schedule.at(epoch) * (self.factor.at(epoch) if isinstance(self.factor, Schedule) else self.factor)


@dataclass(frozen=True)
class CosineSchedule(Schedule):
    """τ(e) = τ₋ + ½(τ₊ - τ₋)(1 + cos(2πe/T)): from `high` to `low` and back in T = `period` epochs (Kukleva et al.).

    Epochs count from 1 in the authors' code; τ(0) = τ₊, τ(T/2) = τ₋.

    >>> [round(CosineSchedule().at(epoch), 3) for epoch in (0, 100, 200, 400)]
    [1.0, 0.55, 0.1, 1.0]
    """

    low: float = 0.1
    high: float = 1.0
    period: float = 400.0

    def __post_init__(self) -> None:
        check_number("low", self.low, above=0.0)
        check_number("high", self.high, above=0.0)
        check_number("period", self.period, above=0.0)
        if self.low > self.high:
            raise ValueError(f"low, high: expected low ≤ high, got low={self.low!r} and high={self.high!r}")

    def at(self, epoch: float) -> float:
        """Return the temperature in an epoch."""
        # A full period: the temperature is back at `high` after T epochs.
        return self.low + 0.5 * (self.high - self.low) * (1 + math.cos(2 * math.pi * epoch / self.period))


@dataclass(frozen=True)
class LinearWarmup(Schedule):
    """τ(e) = start + (end - start)(e - 1)/(E - 1): from `start` to `end` in E = `epochs` epochs, then constant (DINO).

    Epochs count from 1, as `Loss.epoch` does in training: τ(1) = start and τ(E) = end, as in the authors' code.

    >>> [round(LinearWarmup(0.04, 0.07, epochs=4).at(epoch), 3) for epoch in (1, 2, 3, 4, 5)]
    [0.04, 0.05, 0.06, 0.07, 0.07]
    """

    start: float = 0.04
    end: float = 0.07
    epochs: float = 30.0

    def __post_init__(self) -> None:
        check_number("start", self.start, above=0.0)
        check_number("end", self.end, above=0.0)
        check_number("epochs", self.epochs, above=1.0)

    def at(self, epoch: float) -> float:
        """Return the value in an epoch."""
        part = min(max((epoch - 1) / (self.epochs - 1), 0.0), 1.0)
        return self.start + (self.end - self.start) * part


@dataclass(frozen=True)
class CosineDecay(Schedule):
    """γ(e) = end + ½(start - end)(1 + cos(πe/E)): from `start` to `end` in E = `epochs` epochs, then constant (FastCLIP).

    Epochs count from 0 in the authors' code: γ(0) = start.

    >>> [round(CosineDecay(1.0, 0.2, epochs=10).at(epoch), 3) for epoch in (0, 5, 10, 15)]
    [1.0, 0.6, 0.2, 0.2]
    """

    start: float = 1.0
    end: float = 0.2
    epochs: float = 16.0

    def __post_init__(self) -> None:
        check_number("start", self.start, above=0.0)
        check_number("end", self.end, above=0.0)
        check_number("epochs", self.epochs, above=0.0)

    def at(self, epoch: float) -> float:
        """Return the value in an epoch."""
        part = min(epoch / self.epochs, 1.0)
        return self.end + 0.5 * (self.start - self.end) * (1 + math.cos(math.pi * part))
