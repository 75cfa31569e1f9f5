"""φ(s), the exponent of a softmax, in the form that kernels compute."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from contrapose.reduce.logit import Divided, Logit, Scale

_STEEPEST = 40.0  # |φ| up to which e^{φ-max} and e^{max-lse} are float32 numbers


@dataclass(frozen=True)
class KernelProfile:
    """τ(s) for kernels: a Triton function (s, low, span, bend, ROUGH) -> τ(s), τ'(s), and its numbers.

    A temperature that has a method `kernel_profile` is computed by kernels with what that returns. Any other function of
    similarity is computed by its own formula, block by block.
    """

    function: str  # "module:name", imported when a kernel is launched, since it needs Triton
    low: float
    span: float
    largest: float  # upper bound of |s| / τ(s) on [-1, 1]
    bend: float = 0.0
    detach: bool = True


@dataclass(frozen=True, eq=False)
class Exponent:
    """φ(s) as a kernel computes it: times · s, factor_i · s, or times · s / τ(s)."""

    times: float = 1.0
    factor: Tensor | None = None  # (n,): one per anchor
    profile: KernelProfile | None = None

    @property
    def upper_bound(self) -> float:
        """Upper bound of φ; inf if unknown."""
        if self.factor is not None:
            return math.inf
        return abs(self.times) * (1.0 if self.profile is None else self.profile.largest)

    @property
    def shared(self) -> bool:
        """Whether all rows have the same φ, flat enough for a constant shift in place of a running maximum."""
        return self.upper_bound <= _STEEPEST

    @property
    def temperature(self) -> Any:
        """The Triton function of the profile; None without one."""
        return None if self.profile is None else _function(self.profile.function)

    @property
    def numbers(self) -> tuple[float, float, float]:
        """low, span and bend of the profile; zeros, which are not read, without one."""
        profile = self.profile
        return (0.0, 0.0, 0.0) if profile is None else (float(profile.low), float(profile.span), float(profile.bend))

    @property
    def detach(self) -> bool:
        """Whether no gradient flows through τ(s)."""
        return self.profile is None or self.profile.detach

    def same_but_for_times(self, other: Exponent) -> bool:
        """Whether both are multiples of one function."""
        mine, theirs = (replace(phi, times=1.0).__dict__ for phi in (self, other))
        return mine == theirs


@lru_cache
def _function(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)


def exponent(logit: Logit, anchors: int, like: Tensor) -> Exponent | None:
    """Return a logit in the form that kernels compute; None if they cannot."""
    if isinstance(logit, Scale):
        if isinstance(logit.factor, Tensor):
            return Exponent(factor=logit.factor.to(like.device, torch.float32).expand(anchors))
        return Exponent(times=float(logit.factor))
    if not isinstance(logit, Divided):
        return None
    form = getattr(logit.temperature, "kernel_profile", None)
    profile = None if form is None else form()
    return None if profile is None else Exponent(times=logit.factor, profile=profile)
