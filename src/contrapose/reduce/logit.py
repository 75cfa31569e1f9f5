"""From a similarity to the exponent of a softmax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

ALL = slice(None)


class Logit(Protocol):
    """φ(s), elementwise; `rows` says which anchors the rows of `s` belong to."""

    def __call__(self, s: Tensor, rows: slice = ALL) -> Tensor:
        """φ(s)."""

    def times(self, factor: float) -> Logit:
        """factor · φ."""


@dataclass(frozen=True)
class Scale:
    """φ(s) = factor · s, with one factor for all anchors or one for each."""

    factor: float | Tensor  # a number, a tensor without dimensions, or (n,)

    def __call__(self, s: Tensor, rows: slice = ALL) -> Tensor:
        """factor · s."""
        if isinstance(self.factor, Tensor) and self.factor.ndim == 1:
            return s * self.factor[rows, None]
        return s * self.factor

    def times(self, factor: float) -> Scale:
        """The same, multiplied."""
        return Scale(self.factor * factor)


@dataclass(frozen=True)
class Divided:
    """φ(s) = factor · s / τ(s), a temperature for each similarity."""

    temperature: Callable[[Tensor], Tensor]
    factor: float = 1.0

    def __call__(self, s: Tensor, rows: slice = ALL) -> Tensor:
        """factor · s / τ(s)."""
        logits = s / self.temperature(s)
        return logits if self.factor == 1.0 else logits * self.factor

    def times(self, factor: float) -> Divided:
        """The same, multiplied."""
        return replace(self, factor=self.factor * factor)
