"""Temperature as a function of similarity (DySTreSS, Manna et al.; the temperature-free loss of Kim & Kim).

Every profile lies between `low` and `high`. With `detach` (the paper's Algorithm 3, the default) the gradient of the
loss flows only through the numerator of s / τ(s); without `detach`, it also flows through τ(s) (the paper's Eq. 6-7).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from inspect import signature
from typing import ClassVar

import torch
from torch import Tensor

from contrapose.reduce import KernelProfile
from contrapose.validate import check_number

__all__ = ["Profile", "arctanh", "cosine", "exponential", "exponential_legacy", "linear", "monotonic_cosine"]

_KERNELS = "contrapose.temperature.profile_kernels"


@dataclass(frozen=True)
class Profile:
    """τ(s) = low + (high - low) · shape(s), with shape(s) in [0, 1]."""

    low: float  # lowest temperature
    high: float  # highest temperature
    detach: bool = True  # whether no gradient flows through τ(s)
    made_by: ClassVar[str] = ""  # the function that makes it

    def __repr__(self) -> str:
        """Return the call that makes this profile, as users write it, without default settings."""
        known = signature(globals()[self.made_by]).parameters if self.made_by else signature(type(self)).parameters
        given = {name: getattr(self, name) for name in known if hasattr(self, name)}
        settings = [f"{name}={value!r}" for name, value in given.items() if value != known[name].default]
        return f"{self.made_by or type(self).__name__}({', '.join(settings)})"

    def __post_init__(self) -> None:
        check_number("low", self.low, above=0.0)
        check_number("high", self.high, above=0.0)
        if self.low > self.high:
            raise ValueError(f"low, high: expected low ≤ high, got low={self.low!r} and high={self.high!r}")

    def __call__(self, s: Tensor) -> Tensor:
        """Return the temperature of each similarity, in the shape of s."""
        s = s.detach() if self.detach else s
        return self.low + (self.high - self.low) * self.shape(s)

    def shape(self, s: Tensor) -> Tensor:
        """Return the profile scaled to [0, 1]: 0 where τ = `low`, 1 where τ = `high`."""
        raise TypeError(
            f"{type(self).__name__} does not define shape(s): "
            f"override it, or use cosine, linear, exponential, monotonic_cosine or arctanh"
        )

    def kernel_profile(self) -> KernelProfile | None:
        """Return the same profile for GPU kernels; None if there is no such form and `shape` computes it block by block."""
        return None

    def _kernel(
        self, owner: type[Profile], name: str, *, scale: float = 1.0, curvature: float = 0.0
    ) -> KernelProfile | None:
        """Return the function `name` of `profile_kernels`, which computes the shape of the class `owner`."""
        if type(self).shape is not owner.shape:
            return None  # a subclass has changed the formula
        span = (self.high - self.low) * scale
        return KernelProfile(f"{_KERNELS}:{name}", self.low, span, _upper_bound(self), curvature, self.detach)


@lru_cache
def _upper_bound(profile: Profile) -> float:
    """Return an upper bound of |s| / τ(s) on [-1, 1]."""
    # The largest value on a grid, plus 1 % for larger values between grid points.
    s = torch.linspace(-1, 1, 2001, dtype=torch.float64)
    return 1.01 * float((s.abs() / profile(s)).max())


@dataclass(frozen=True, repr=False)
class Cosine(Profile):
    """DySTreSS, Algorithm 1: lowest at s = 0, highest at s = ±1."""

    made_by = "cosine"

    def shape(self, s: Tensor) -> Tensor:
        """Return sin²(πs/2) = ½(1 + cos(π(1 + s)))."""
        # Computed as sin², because 1 + cos(…) cancels near s = 0, where the profile has its minimum.
        return torch.sin(s * (math.pi / 2)).square()

    def kernel_profile(self) -> KernelProfile | None:
        """Return the same profile for GPU kernels."""
        return self._kernel(Cosine, "cosine")


@dataclass(frozen=True, repr=False)
class ShiftedCosine(Profile):
    """DySTreSS, Algorithm 2: one cosine period on one side of s = -shift, `high` on the other."""

    made_by = "cosine"

    shift: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("shift", self.shift, least=-1.0, most=1.0)

    def shape(self, s: Tensor) -> Tensor:
        """Return ½(1 + cos(π/k · (shift + s))), k = (1 + |shift|)/2, on the cosine's side of -shift; 1 elsewhere."""
        k = (1 + abs(self.shift)) / 2
        wave = 0.5 * (1 + torch.cos((self.shift + s) * (math.pi / k)))
        # At shift = 0 the paper's condition holds for every s; the authors' code takes the left side.
        in_period = s <= -self.shift if self.shift <= 0 else s >= -self.shift
        return torch.where(in_period, wave, torch.ones_like(wave))

    def kernel_profile(self) -> KernelProfile | None:
        """Return the same profile for GPU kernels."""
        return self._kernel(ShiftedCosine, "shifted_cosine", curvature=self.shift)


@dataclass(frozen=True, repr=False)
class Linear(Profile):
    """DySTreSS, Table 10: lowest at s = 0; s / τ(s) is monotone for any low > 0."""

    made_by = "linear"

    def shape(self, s: Tensor) -> Tensor:
        """Return |s|."""
        return s.abs()

    def kernel_profile(self) -> KernelProfile | None:
        """Return the same profile for GPU kernels."""
        return self._kernel(Linear, "linear")


@dataclass(frozen=True, repr=False)
class Exponential(Profile):
    """DySTreSS, Table 10: lowest at s = 0, rising steeply at first."""

    made_by = "exponential"

    rate: float = 3.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("rate", self.rate, above=0.0)

    def shape(self, s: Tensor) -> Tensor:
        """Return (1 - e^{-c|s|}) / (1 - e^{-c})."""
        return torch.expm1(-self.rate * s.abs()) / math.expm1(-self.rate)

    def kernel_profile(self) -> KernelProfile | None:
        """Return the same profile for GPU kernels."""
        return self._kernel(Exponential, "exponential", scale=-1 / math.expm1(-self.rate), curvature=self.rate)


@dataclass(frozen=True, repr=False)
class ExponentialLegacy(Exponential):
    """The authors' first form a - b e^{-c|s|}, which stays below `high` at s = ±1."""

    made_by = "exponential_legacy"

    def shape(self, s: Tensor) -> Tensor:
        """Return 1 - e^{-c|s|}."""
        return -torch.expm1(-self.rate * s.abs())

    def kernel_profile(self) -> KernelProfile | None:
        """Return the same profile for GPU kernels."""
        return self._kernel(ExponentialLegacy, "exponential", curvature=self.rate)


@dataclass(frozen=True, repr=False)
class MonotonicCosine(Profile):
    """DySTreSS, Table 16: lowest at s = -1, highest at s = 1."""

    made_by = "monotonic_cosine"

    def shape(self, s: Tensor) -> Tensor:
        """Return ½(1 + sin(πs/2))."""
        return 0.5 * (1 + torch.sin(s * (math.pi / 2)))

    def kernel_profile(self) -> KernelProfile | None:
        """Return the same profile for GPU kernels."""
        return self._kernel(MonotonicCosine, "monotonic_cosine")


# Beyond this |s| the exponent 2 artanh(s) stays constant: at |s| = 1 it would be infinite, and rounding carries |s| beyond 1.
_END = 1 - 2**-20  # a float32 number, so that the exponent there is the same in every precision
_END_TEMPERATURE = _END / (2 * math.atanh(_END))  # 0.0687
_SMALL = 1e-4  # below this |s|, two terms of the series are exact to 1e-17


@dataclass(frozen=True, repr=False)
class Arctanh(Profile):
    """Kim & Kim's exponent 2 artanh(s) as a temperature, stretched to the range from `low` to `high`."""

    made_by = "arctanh"

    low: float = field(default=_END_TEMPERATURE, repr=False)
    high: float = field(default=0.5, repr=False)
    detach: bool = False

    def shape(self, s: Tensor) -> Tensor:
        """Return s / (2 artanh s), scaled to 1 at s = 0 and to 0 at |s| = 1 - 2⁻²⁰; beyond, s / τ(s) stays constant."""
        small = s.abs() < _SMALL
        # The inner `where` keeps 0 / 0 from becoming NaN in the backward pass.
        apart = torch.where(small, 0.5, s)
        inside = apart.clamp(-_END, _END)
        # Not torch.atanh, whose derivative 1/(1 - s²) loses digits near |s| = 1.
        tau = torch.where(small, 0.5 - s.square() / 6, apart / (torch.log1p(inside) - torch.log1p(-inside)))
        return (tau - _END_TEMPERATURE) / (0.5 - _END_TEMPERATURE)

    def kernel_profile(self) -> KernelProfile | None:
        """Return the same profile for GPU kernels."""
        stretched = (self.low, self.high) != (_END_TEMPERATURE, 0.5)
        return None if stretched else self._kernel(Arctanh, "arctanh")


def cosine(low: float, high: float, shift: float | None = None, *, detach: bool = True) -> Profile:
    """Return τ(s) = low + (high - low) sin²(πs/2), lowest at s = 0 and highest at s = ±1 (DySTreSS, Alg. 1).

    With `shift` (Alg. 2, Δs; k = (1 + |Δs|)/2): Δs ≤ 0 gives one cosine period on s ≤ -Δs, with its minimum at
    -(1 - |Δs|)/2, and `high` to the right of it; Δs > 0 is the mirror image. Δs = ±1 is Algorithm 1 again.

    low      lowest temperature
    high     highest temperature
    shift    Δs in [-1, 1]; default: Algorithm 1
    detach   whether no gradient flows through τ(s), as in the paper's Algorithm 3

    >>> tau = cosine(0.1, 0.2)
    >>> tau(torch.tensor([-1.0, 0.0, 1.0]))
    tensor([0.2000, 0.1000, 0.2000])
    >>> cosine(0.1, 0.2, shift=-0.4)(torch.tensor([-1.0, -0.3, 0.4, 1.0]))
    tensor([0.2000, 0.1000, 0.2000, 0.2000])
    """
    return Cosine(low, high, detach) if shift is None else ShiftedCosine(low, high, detach, shift)


def linear(low: float, high: float, *, detach: bool = True) -> Profile:
    """Return τ(s) = low + (high - low)|s| (DySTreSS, Table 10).

    low      lowest temperature
    high     highest temperature
    detach   whether no gradient flows through τ(s), as in the paper's Algorithm 3
    """
    return Linear(low, high, detach)


def exponential(low: float, high: float, *, rate: float = 3.5, detach: bool = True) -> Profile:
    """Return τ(s) = low + (high - low)(1 - e^{-c|s|})/(1 - e^{-c}), c = `rate` (DySTreSS, Table 10).

    low      lowest temperature
    high     highest temperature
    rate     c
    detach   whether no gradient flows through τ(s), as in the paper's Algorithm 3
    """
    return Exponential(low, high, detach, rate)


def exponential_legacy(low: float, high: float, *, rate: float = 3.5, detach: bool = True) -> Profile:
    """Return τ(s) = high - (high - low) e^{-c|s|}, the authors' first form: τ(±1) is a little below `high`."""
    return ExponentialLegacy(low, high, detach, rate)


def monotonic_cosine(low: float, high: float, *, detach: bool = True) -> Profile:
    """Return τ(s) = low + ½(high - low)(1 + sin(πs/2)), which rises from s = -1 to s = 1 (DySTreSS, Table 16).

    low      lowest temperature
    high     highest temperature
    detach   whether no gradient flows through τ(s), as in the paper's Algorithm 3
    """
    return MonotonicCosine(low, high, detach)


def arctanh(*, detach: bool = False) -> Profile:
    """Return τ(s) = s / (2 artanh s), which makes the exponent s/τ(s) = log((1 + s)/(1 - s)) (Kim & Kim, arXiv 2501.17683).

    `nt_xent` with it is the paper's InfoNCE without a temperature: the exponent is the log-odds of the probability
    (1 + s)/2. τ falls from 1/2 at s = 0 to 0.069 at |s| = 1 - 2⁻²⁰, beyond which the exponent stays at ±14.6, so that it and
    its gradient remain finite. The gradient of the exponent, 2/(1 - s²), grows towards |s| = 1.

    detach   whether no gradient flows through τ(s); in the paper it does

    >>> s = torch.tensor([-0.5, 0.0, 0.5, 1.0])
    >>> s / arctanh()(s)
    tensor([-1.0986,  0.0000,  1.0986, 14.5561])
    """
    return Arctanh(detach=detach)
