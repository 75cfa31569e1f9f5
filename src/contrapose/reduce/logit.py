"""From a similarity to the exponent of a softmax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from contrapose.reduce.block import ALL


class Logit(Protocol):
    """φ(s), elementwise; `rows` says which anchors the rows of `s` belong to."""

    def __call__(self, s: Tensor, rows: slice = ALL) -> Tensor:
        """φ(s)."""

    def times(self, factor: float) -> Logit:
        """factor · φ."""

    def of(self, rows: slice) -> Logit:
        """φ of some anchors alone."""

    def back(self, s: Tensor, gradient: Tensor, rows: slice) -> tuple[Tensor, Tensor | None]:
        """From ∂L/∂φ, which may be overwritten: ∂L/∂s, and ∂L/∂factor for each row where that is wanted."""

    @property
    def learned(self) -> Tensor | None:
        """The factor, where it carries gradient."""

    def opaque(self, sample: Tensor) -> bool:
        """Whether something carries gradient that only autograd can find; `sample` is some similarity."""


@dataclass(frozen=True)
class Scale:
    """φ(s) = factor · s, with one factor for all anchors or one for each."""

    factor: float | Tensor  # a number, a tensor without dimensions, or (n,)

    def __call__(self, s: Tensor, rows: slice = ALL) -> Tensor:
        """factor · s."""
        return s * self._of(rows, s)

    def times(self, factor: float) -> Scale:
        """The same, multiplied."""
        return Scale(self.factor * factor)

    def of(self, rows: slice) -> Scale:
        """The same for some anchors."""
        return Scale(self.factor[rows]) if isinstance(self.factor, Tensor) and self.factor.ndim else self

    def back(self, s: Tensor, gradient: Tensor, rows: slice) -> tuple[Tensor, Tensor | None]:
        """∂L/∂s = factor · ∂L/∂φ, ∂L/∂factor = Σ s · ∂L/∂φ."""
        learned = (gradient * s).sum(1) if self.learned is not None else None
        return gradient.mul_(self._of(rows, s)), learned

    @property
    def learned(self) -> Tensor | None:
        """The factor, where it carries gradient."""
        return self.factor if isinstance(self.factor, Tensor) and self.factor.requires_grad else None

    def opaque(self, sample: Tensor) -> bool:
        """Never: a factor is all there is."""
        return False

    def _of(self, rows: slice, like: Tensor) -> float | Tensor:
        if not isinstance(self.factor, Tensor):
            return self.factor
        factor = self.factor.to(like)
        return factor[rows, None] if factor.ndim else factor


@dataclass(frozen=True)
class Divided:
    """φ(s) = factor · s / τ(s), a temperature for each similarity."""

    temperature: Callable[[Tensor], Tensor]
    factor: float = 1.0
    learned = None

    def __call__(self, s: Tensor, rows: slice = ALL) -> Tensor:
        """factor · s / τ(s)."""
        logits = s / self.temperature(s)
        return logits if self.factor == 1.0 else logits * self.factor

    def times(self, factor: float) -> Divided:
        """The same, multiplied."""
        return replace(self, factor=self.factor * factor)

    def of(self, rows: slice) -> Divided:
        """Itself: all anchors have the same."""
        return self

    def back(self, s: Tensor, gradient: Tensor, rows: slice) -> tuple[Tensor, Tensor | None]:
        """∂L/∂s by autograd, elementwise: whatever τ detaches stays detached."""
        with torch.enable_grad():
            s = s.detach().requires_grad_()
            (result,) = torch.autograd.grad(self(s), s, gradient)
        return result, None

    def opaque(self, sample: Tensor) -> bool:
        """Whether τ has parameters of its own: then even a constant's temperature carries gradient."""
        return self.temperature(sample.detach()).requires_grad
