# mypy: ignore-errors
"""The profiles of `profile` as Triton functions. Imported only when a kernel needs one.

Each takes (s, low, span, curvature, ROUGH) and returns τ(s) and its derivative τ'(s). ROUGH allows an error of 2e-5, which is
less than the error of bf16 products. An unused derivative costs nothing: the compiler removes it.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
PI = tl.constexpr(3.141592653589793)


@triton.jit
def _sign(s):
    return tl.where(s > 0, 1.0, tl.where(s < 0, -1.0, 0.0))


@triton.jit
def cosine(s, low, span, curvature, ROUGH: tl.constexpr):
    """Return low + span · sin²(πs/2), with sin² as a polynomial in s², to 6e-9."""
    # Multiply-adds are cheaper than a sine for each similarity. Coefficients times span do not depend on s, so the
    # compiler can move these products out of the loop over columns.
    x = s * s
    if ROUGH:
        q = span * 0.6452337073189713 - span * 0.08980824733740914 * x
        q = span * 2.4666686780460942 + (span * -2.022116979327298 + q * x) * x
    else:
        q = span * 0.012686259689949892 - span * 0.0007990589295144168 * x
        q = span * 0.6675841371163339 + (span * -0.11752325416789154 + q * x) * x
        q = span * 2.467400730059022 + (span * -2.0293488196905307 + q * x) * x
    return low + q * x, tl.sin(s * PI) * (span * 1.5707963267948966)


@triton.jit
def linear(s, low, span, curvature, ROUGH: tl.constexpr):
    """Return low + span · |s|."""
    return low + span * tl.abs(s), span * _sign(s)


@triton.jit
def exponential(s, low, span, curvature, ROUGH: tl.constexpr):
    """Return low + span · (1 - e^{-curvature |s|})."""
    decay = tl.exp2(tl.abs(s) * (-curvature * LOG2E))
    return low + span * (1.0 - decay), span * curvature * decay * _sign(s)


@triton.jit
def shifted_cosine(s, low, span, curvature, ROUGH: tl.constexpr):
    """Return low + span · ½(1 + cos(2π/(1 + |c|) · (c + s))) on one side of -c, low + span on the other, with c the curvature."""
    frequency = 6.283185307179586 / (1.0 + tl.abs(curvature))
    in_period = tl.where(curvature <= 0.0, s <= -curvature, s >= -curvature)
    wave = 0.5 + 0.5 * tl.cos((curvature + s) * frequency)
    slope = tl.where(in_period, -0.5 * span * frequency * tl.sin((curvature + s) * frequency), 0.0)
    return low + span * tl.where(in_period, wave, 1.0), slope


@triton.jit
def monotonic_cosine(s, low, span, curvature, ROUGH: tl.constexpr):
    """Return low + span · ½(1 + sin(πs/2))."""
    angle = s * 1.5707963267948966
    return low + span * (0.5 + 0.5 * tl.sin(angle)), tl.cos(angle) * (span * 0.7853981633974483)
