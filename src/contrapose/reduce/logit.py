"""Map a similarity s to φ(s), the exponent of a softmax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from contrapose.reduce.block import ALL


class Logit(Protocol):
    """φ(s), elementwise; `rows` are the anchors to which the rows of `s` belong."""

    def __call__(self, s: Tensor, rows: slice = ALL) -> Tensor:
        """Return φ(s)."""

    def times(self, factor: float) -> Logit:
        """Return factor · φ."""

    def for_rows(self, rows: slice | Tensor) -> Logit:
        """Return φ for a subset of the anchors."""

    def map_learned(self, change: Callable[[Tensor], Tensor]) -> Logit:
        """Return φ with its learned factor, if it has one, replaced by `change(factor)`."""

    def backward(self, s: Tensor, gradient: Tensor, rows: slice) -> tuple[Tensor, Tensor | None]:
        """Return ∂L/∂s and, if the factor is learned, ∂L/∂factor per row, from ∂L/∂φ, which may be overwritten."""

    @property
    def learned(self) -> Tensor | None:
        """The factor, if it requires grad."""

    def needs_autograd(self, sample: Tensor) -> bool:
        """Whether φ has parameters whose gradient only autograd can compute; `sample` is any similarity."""


@dataclass(frozen=True)
class Scale:
    """φ(s) = factor · s, with one factor for all anchors or one per anchor."""

    factor: float | Tensor  # a number, a tensor without dimensions, or (n,)
    # torch.compile asks a callable for its hash while it traces the constructor, when there is no factor to hash yet.
    __hash__ = None  # type: ignore[assignment]

    def __call__(self, s: Tensor, rows: slice = ALL) -> Tensor:
        """Return factor · s."""
        return s * self._factor(rows, s)

    def times(self, factor: float) -> Scale:
        """Return factor · φ."""
        return Scale(self.factor * factor)

    def for_rows(self, rows: slice | Tensor) -> Scale:
        """Return φ for a subset of the anchors."""
        return Scale(self.factor[rows]) if isinstance(self.factor, Tensor) and self.factor.ndim else self

    def map_learned(self, change: Callable[[Tensor], Tensor]) -> Scale:
        """Return φ with a learned factor replaced by `change(factor)`."""
        return self if self.learned is None else Scale(change(self.learned))

    def backward(self, s: Tensor, gradient: Tensor, rows: slice) -> tuple[Tensor, Tensor | None]:
        """∂L/∂s = factor · ∂L/∂φ, ∂L/∂factor = Σ s · ∂L/∂φ."""
        # The factor's gradient first: `gradient` is overwritten after that.
        learned = (gradient * s).sum(1) if self.learned is not None else None
        return gradient.mul_(self._factor(rows, s)), learned

    @property
    def learned(self) -> Tensor | None:
        """The factor, if it requires grad."""
        return self.factor if isinstance(self.factor, Tensor) and self.factor.requires_grad else None

    def needs_autograd(self, sample: Tensor) -> bool:
        """Return False: the only parameter is the factor, whose gradient `backward` returns."""
        return False

    def _factor(self, rows: slice, like: Tensor) -> float | Tensor:
        if not isinstance(self.factor, Tensor):
            return self.factor
        factor = self.factor.to(like)  # a float64 temperature must not promote a float32 block
        return factor[rows, None] if factor.ndim else factor


@dataclass(frozen=True)
class TemperatureLogit:
    """φ(s) = factor · s / τ(s), with the temperature a function of similarity."""

    temperature: Callable[[Tensor], Tensor]
    factor: float = 1.0
    learned = None

    def __call__(self, s: Tensor, rows: slice = ALL) -> Tensor:
        """Return factor · s / τ(s)."""
        logits = s / self.temperature(s)
        return logits if self.factor == 1.0 else logits * self.factor

    def times(self, factor: float) -> TemperatureLogit:
        """Return factor · φ."""
        return replace(self, factor=self.factor * factor)

    def for_rows(self, rows: slice | Tensor) -> TemperatureLogit:
        """Return φ itself: it is the same for all anchors."""
        return self

    def map_learned(self, change: Callable[[Tensor], Tensor]) -> TemperatureLogit:
        """Return φ itself: parameters of the function are not known here."""
        return self

    def backward(self, s: Tensor, gradient: Tensor, rows: slice) -> tuple[Tensor, Tensor | None]:
        """Return ∂L/∂s by autograd, elementwise, so that whatever τ detaches stays detached."""
        with torch.enable_grad():
            s = s.detach().requires_grad_()
            (d_similarity,) = torch.autograd.grad(self(s), s, gradient)
        return d_similarity, None

    def needs_autograd(self, sample: Tensor) -> bool:
        """Whether τ has its own parameters, in which case the temperature at a constant requires grad."""
        return self.temperature(sample.detach()).requires_grad


@dataclass(frozen=True)
class HardnessLogit:
    """φ(s) + strength · sg[s]: similar negatives get more weight, and the derivative is the same as that of φ (Lan et al.)."""

    inner: Logit  # φ
    strength: float

    def __call__(self, s: Tensor, rows: slice = ALL) -> Tensor:
        """Return φ(s) + strength · s, with no gradient through the second term."""
        return self.inner(s, rows) + self.strength * s.detach()

    def times(self, factor: float) -> HardnessLogit:
        """Return factor · φ, including the added term."""
        return HardnessLogit(self.inner.times(factor), self.strength * factor)

    def for_rows(self, rows: slice | Tensor) -> HardnessLogit:
        """Return φ for a subset of the anchors."""
        return replace(self, inner=self.inner.for_rows(rows))

    def map_learned(self, change: Callable[[Tensor], Tensor]) -> HardnessLogit:
        """Return φ with a learned factor replaced by `change(factor)`."""
        return replace(self, inner=self.inner.map_learned(change))

    def backward(self, s: Tensor, gradient: Tensor, rows: slice) -> tuple[Tensor, Tensor | None]:
        """Return ∂L/∂s and ∂L/∂factor through φ only."""
        return self.inner.backward(s, gradient, rows)

    @property
    def learned(self) -> Tensor | None:
        """The factor of φ, if it requires grad."""
        return self.inner.learned

    def needs_autograd(self, sample: Tensor) -> bool:
        """Whether φ does."""
        return self.inner.needs_autograd(sample)
