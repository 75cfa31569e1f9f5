"""The differential equation behind DySTreSS (its Proposition 1) and its solutions."""

from __future__ import annotations

import math

from torch import Tensor

from contrapose.validate import check_number, check_values


def ode_solution(s: Tensor, *, delta_k: float, constant: float) -> Tensor:
    """Return τ(s) = s / log(δK·s + C), which solves dτ/ds = (τ/s)(1 - τ δK e^{-s/τ}) (DySTreSS, Eq. 14; C = -c).

    It is defined where δK·s + C is positive and not 1, and where s is not 0.
    """
    check_number("delta_k", delta_k)
    check_number("constant", constant)
    if not isinstance(s, Tensor):
        raise ValueError(f"s: expected a tensor of similarities, got {type(s).__name__}")
    inside = delta_k * s + constant
    check_values(
        (inside > 0) & (inside != 1) & (s != 0),
        lambda: f"s: the solution needs δK·s + C > 0 and ≠ 1, and s ≠ 0 (δK = {delta_k}, C = {constant})",
    )
    return s / inside.log()


def ode_constant(*, delta_k: float, high: float, at: int) -> float:
    """Return the constant C for which τ(at) = `high`, at = +1 or -1 (DySTreSS, Eq. 15, with the sign of c⁺ corrected).

    C⁺ = e^{1/τ} - δK and C⁻ = e^{-1/τ} + δK.
    """
    check_number("high", high, above=0.0)
    check_number("delta_k", delta_k)
    if at not in (1, -1):
        raise ValueError(f"at: expected +1 or -1, got {at!r}")
    if high < 1 / 700:  # e^709 is close to the largest float64
        raise ValueError(
            f"high: expected a temperature above {1 / 700:.3g}, below which e^(1/τ) overflows, got {high!r}"
        )
    return math.exp(at / high) - at * delta_k
