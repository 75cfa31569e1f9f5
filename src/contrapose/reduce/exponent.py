"""φ(s), the exponent of a softmax, as kernels know it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from contrapose.reduce.logit import Divided, Logit, Scale

_STEEPEST = 40.0  # |φ| up to which e^{φ-max} and e^{max-lse} are float32 numbers
SCALE, COSINE, LINEAR, EXPONENTIAL, SHIFTED, MONOTONIC = range(6)


@dataclass(frozen=True, eq=False)
class Exponent:
    """φ(s) as a kernel knows it: times · s, factor_i · s, or times · s / τ(s)."""

    kind: int = SCALE
    times: float = 1.0
    factor: Tensor | None = None  # (n,): one for each anchor
    low: float = 0.0
    span: float = 0.0
    bend: float = 0.0
    detach: bool = True

    @property
    def most(self) -> float:
        """φ is nowhere above it; infinite where nobody knows."""
        return (
            math.inf
            if self.factor is not None
            else abs(self.times) * _highest(self.kind, self.low, self.span, self.bend)
        )

    @property
    def shared(self) -> bool:
        """Whether all rows have the same φ, and one that is flat enough for a constant shift."""
        return self.most <= _STEEPEST

    def same_but_for_times(self, other: Exponent) -> bool:
        """Whether both are multiples of one function."""
        mine, theirs = (replace(phi, times=1.0).__dict__ for phi in (self, other))
        return mine == theirs


@lru_cache
def _highest(kind: int, low: float, span: float, bend: float) -> float:
    """The largest |s|/τ(s), with room for what lies between the points."""
    if kind == SCALE:
        return 1.0
    s = torch.linspace(-1, 1, 2001, dtype=torch.float64)
    if kind == COSINE:
        shape = torch.sin(s * math.pi / 2).square()
    elif kind == LINEAR:
        shape = s.abs()
    elif kind == EXPONENTIAL:
        shape = 1 - torch.exp(-bend * s.abs())
    else:  # however they bend
        shape = torch.zeros_like(s)
    return 1.01 * float((s.abs() / (low + span * shape)).max())


def exponent(logit: Logit, anchors: int, like: Tensor) -> Exponent | None:
    """A logit as kernels know it; None where they do not."""
    if isinstance(logit, Scale):
        if isinstance(logit.factor, Tensor):
            return Exponent(factor=logit.factor.to(like.device, torch.float32).expand(anchors))
        return Exponent(times=float(logit.factor))
    if not isinstance(logit, Divided):
        return None
    profile: Any = logit.temperature
    name = type(profile).__name__  # by name: profiles stand a layer above this one
    if name not in ("Cosine", "Linear", "Exponential", "ExponentialLegacy", "ShiftedCosine", "MonotonicCosine"):
        return None
    low, span, detach = profile.low, profile.high - profile.low, profile.detach
    kind, bend = {"Cosine": COSINE, "Linear": LINEAR, "MonotonicCosine": MONOTONIC}.get(name, EXPONENTIAL), 0.0
    if name == "ShiftedCosine":
        kind, bend = SHIFTED, profile.shift
    elif kind == EXPONENTIAL:
        bend = profile.rate
        span = span / -math.expm1(-bend) if name == "Exponential" else span
    return Exponent(kind, logit.factor, None, low, span, bend, detach)
