# mypy: ignore-errors
"""The profiles of `profile` as Triton functions. Imported only when a kernel needs one.

Each takes (s, low, span, curvature, DETACH, FAST, ROUGH) and returns s / τ(s) and its derivative, in which τ is a constant if
DETACH. FAST: on a GPU, not in Triton's interpreter, which cannot run inline assembly. ROUGH allows τ an error of 2e-5, which is
less than the error of bf16 products. An unused derivative costs nothing: the compiler removes it.
"""

import triton
import triton.language as tl

from contrapose.reduce.kernel_math import LN2, LOG2E, reciprocal

PI = tl.constexpr(3.141592653589793)


@triton.jit
def _divided(s, tau, tau_slope, DETACH: tl.constexpr, FAST: tl.constexpr):
    """Return s / τ(s) and its derivative, from τ(s) and τ'(s)."""
    inverse = reciprocal(tau, FAST)
    if DETACH:
        slope = inverse
    else:
        slope = (tau - s * tau_slope) * inverse * inverse
    return s * inverse, slope


@triton.jit
def _sign(s):
    return tl.where(s > 0, 1.0, tl.where(s < 0, -1.0, 0.0))


@triton.jit
def cosine(s, low, span, curvature, DETACH: tl.constexpr, FAST: tl.constexpr, ROUGH: tl.constexpr):
    """τ(s) = low + span · sin²(πs/2), with sin² as a polynomial in s², to 6e-9."""
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
    return _divided(s, low + q * x, tl.sin(s * PI) * (span * 1.5707963267948966), DETACH, FAST)


@triton.jit
def linear(s, low, span, curvature, DETACH: tl.constexpr, FAST: tl.constexpr, ROUGH: tl.constexpr):
    """τ(s) = low + span · |s|."""
    return _divided(s, low + span * tl.abs(s), span * _sign(s), DETACH, FAST)


@triton.jit
def exponential(s, low, span, curvature, DETACH: tl.constexpr, FAST: tl.constexpr, ROUGH: tl.constexpr):
    """τ(s) = low + span · (1 - e^{-curvature |s|})."""
    decay = tl.exp2(tl.abs(s) * (-curvature * LOG2E))
    return _divided(s, low + span * (1.0 - decay), span * curvature * decay * _sign(s), DETACH, FAST)


@triton.jit
def shifted_cosine(s, low, span, curvature, DETACH: tl.constexpr, FAST: tl.constexpr, ROUGH: tl.constexpr):
    """τ(s) = low + span · ½(1 + cos(2π/(1 + |c|) · (c + s))) on one side of -c, low + span on the other, with c the curvature."""
    frequency = 6.283185307179586 / (1.0 + tl.abs(curvature))
    in_period = tl.where(curvature <= 0.0, s <= -curvature, s >= -curvature)
    wave = 0.5 + 0.5 * tl.cos((curvature + s) * frequency)
    slope = tl.where(in_period, -0.5 * span * frequency * tl.sin((curvature + s) * frequency), 0.0)
    return _divided(s, low + span * tl.where(in_period, wave, 1.0), slope, DETACH, FAST)


@triton.jit
def monotonic_cosine(s, low, span, curvature, DETACH: tl.constexpr, FAST: tl.constexpr, ROUGH: tl.constexpr):
    """τ(s) = low + span · ½(1 + sin(πs/2))."""
    angle = s * 1.5707963267948966
    return _divided(
        s, low + span * (0.5 + 0.5 * tl.sin(angle)), tl.cos(angle) * (span * 0.7853981633974483), DETACH, FAST
    )


@triton.jit
def arctanh(s, low, span, curvature, DETACH: tl.constexpr, FAST: tl.constexpr, ROUGH: tl.constexpr):
    """s / τ(s) = log((1 + s) / (1 - s)), constant beyond |s| = 1 - 2⁻²⁰."""
    end = 0.99999904632568359375
    inside = tl.minimum(tl.maximum(s, -end), end)
    above, below = 1.0 + inside, 1.0 - inside
    if FAST:  # one instruction, with an absolute error of 2⁻²² near 1 and a relative one elsewhere
        base = _fast_log2(above) - _fast_log2(below)
    else:
        base = tl.log2(above) - tl.log2(below)
    base *= LN2
    if DETACH:  # near 0 the quotient is 0 / 0, and 2 + 2s²/3 its series
        small = tl.abs(s) < 0.01
        slope = tl.where(small, 2.0 + s * s * 0.6666666666666666, base * reciprocal(tl.where(small, 1.0, s), FAST))
    else:
        slope = tl.where(tl.abs(s) < end, 2.0 * reciprocal(above * below, FAST), 0.0)
    return base, slope


@triton.jit
def _fast_log2(x):
    return tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=r,r", [x], tl.float32, True, 1)
