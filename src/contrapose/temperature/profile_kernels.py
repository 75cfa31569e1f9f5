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


@triton.jit
def arctanh(s, low, span, curvature, ROUGH: tl.constexpr):
    """Return low + span · (s / (2 artanh s) - c), with c the curvature and a constant exponent beyond |s| = 1 - 2⁻²⁰."""
    x = s * s
    end = 0.99999904632568359375
    inside = tl.minimum(tl.maximum(s, -end), end)
    exponent = tl.log((1.0 + inside) / (1.0 - inside))
    # Near 0 the quotient is 0 / 0 and the logarithm has few digits: s / artanh s by its series, to 3e-8 at |s| = 0.15.
    small = x < 0.0225
    exponent = tl.where(small, 1.0, exponent)
    series = 0.5 - x * (
        0.16666666666666666 + x * (0.044444444444444446 + x * (0.02328042328042328 + x * 0.0150970017636684))
    )
    series_slope = -s * (
        0.3333333333333333 + x * (0.17777777777777778 + x * (0.13968253968253969 + x * 0.1207760141093474))
    )
    exponent_slope = tl.where(tl.abs(s) < end, 2.0 / ((1.0 + inside) * (1.0 - inside)), 0.0)
    quotient = s / exponent
    tau = tl.where(small, series, quotient)
    slope = tl.where(small, series_slope, (1.0 - quotient * exponent_slope) / exponent)
    return low + span * (tau - curvature), span * slope
