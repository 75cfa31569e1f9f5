"""φ(s), the exponent of a softmax, in the form that Triton kernels compute."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from contrapose.reduce.logit import Logit, Scale, TemperatureLogit

# If |φ| is at most this bound, e^{φ - bound} ≥ e^{-80} and its reciprocal are normal float32 numbers, so a constant shift
# by the bound loses no precision.
MAX_SHIFT = 40.0


@dataclass(frozen=True)
class KernelProfile:
    """τ(s) for kernels: a Triton function like those of `profile_kernels`, and its parameters.

    If a temperature's method `kernel_profile` returns one, kernels compute the temperature. Any other function of
    similarity is computed by its own formula, block by block.
    """

    function: str  # "module:name", imported only when a kernel is launched, since that module needs Triton
    low: float
    span: float
    largest: float  # upper bound of |s| / τ(s) on [-1, 1]
    curvature: float = 0.0
    detach: bool = True


@dataclass(frozen=True, eq=False)
class Exponent:
    """φ(s) in one of the forms that kernels compute: times · s, factor_i · s, or times · s / τ(s)."""

    times: float = 1.0
    factor: Tensor | None = None  # (n,): one per anchor
    profile: KernelProfile | None = None

    @property
    def upper_bound(self) -> float:
        """Upper bound of |φ|; inf if unknown."""
        if self.factor is not None:  # reading its values would wait for the device
            return math.inf
        return abs(self.times) * (1.0 if self.profile is None else self.profile.largest)

    @property
    def is_bounded(self) -> bool:
        """Whether |φ| is small enough, in all rows, for a constant shift instead of a running maximum."""
        return self.upper_bound <= MAX_SHIFT

    @property
    def shift(self) -> float:
        """The constant shift; 0 if there is none."""
        return self.upper_bound if self.is_bounded else 0.0

    @property
    def key(self) -> tuple[float, KernelProfile | None]:
        """What two bounded exponents have in common if they are the same function."""
        return self.times, self.profile

    @property
    def constants(self) -> dict[str, Any]:
        """The compile-time arguments that describe φ to a kernel."""
        return {"CONSTANT_SHIFT": self.is_bounded, "TEMPERATURE": self.temperature, "DETACH": self.detach}

    @property
    def temperature(self) -> Any:
        """The Triton function of the profile; None without a profile."""
        return None if self.profile is None else _function(self.profile.function)

    @property
    def numbers(self) -> tuple[float, float, float]:
        """low, span and curvature of the profile; without a profile zeros, which kernels do not read."""
        profile = self.profile
        return (
            (0.0, 0.0, 0.0) if profile is None else (float(profile.low), float(profile.span), float(profile.curvature))
        )

    @property
    def detach(self) -> bool:
        """Whether no gradient flows through τ(s)."""
        return self.profile is None or self.profile.detach

    def is_multiple_of(self, other: Exponent) -> bool:
        """Whether both are multiples of the same function."""
        mine, theirs = (replace(phi, times=1.0).__dict__ for phi in (self, other))
        return mine == theirs


@lru_cache
def _function(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)


def exponent(logit: Logit, anchors: int, like: Tensor) -> Exponent | None:
    """Return a logit for `anchors` rows, on the device of `like`, in the form kernels compute; None if they cannot."""
    if isinstance(logit, Scale):
        if isinstance(logit.factor, Tensor):
            return Exponent(factor=logit.factor.to(like.device, torch.float32).expand(anchors))
        return Exponent(times=float(logit.factor))
    if not isinstance(logit, TemperatureLogit):
        return None
    make_profile = getattr(logit.temperature, "kernel_profile", None)
    profile = None if make_profile is None else make_profile()
    return None if profile is None else Exponent(times=logit.factor, profile=profile)
