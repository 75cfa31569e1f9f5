# mypy: ignore-errors
"""The Triton kernels of `fused`: what they compute is said there."""

import triton
import triton.language as tl


@triton.jit
def _logit(s, factor, low, span, KIND: tl.constexpr, DETACH: tl.constexpr):
    """φ(s) and its slope."""
    if KIND == 0:
        return s * factor, factor + s * 0.0
    if KIND == 1:  # sin²(πs/2) as a polynomial in s², to 2e-8
        x = s * s
        q = 0.01274423722645821 - 0.0008194806203914438 * x
        q = -0.11758385094229955 + q * x
        q = 0.6676124427579604 + q * x
        q = -2.029354448232488 + q * x
        tau = low + span * x * (2.467401077926936 + q * x)
    else:
        tau = low + span * tl.abs(s)
    inverse = 1.0 / tau
    if DETACH:
        return s * inverse, inverse
    if KIND == 1:
        slope = span * 1.5707963267948966 * tl.sin(3.141592653589793 * s)
    else:
        slope = span * tl.where(s < 0, -1.0, 1.0)
    return s * inverse, (tau - s * slope) * inverse * inverse


@triton.jit
def _similarity(z, p, rows, columns, n, m, d, WIDTH: tl.constexpr, PRECISION: tl.constexpr):
    """The columns' unit vectors, and their products with those of the rows."""
    along = tl.arange(0, WIDTH)
    inside = along < d
    a = tl.load(z + rows.to(tl.int64)[:, None] * d + along[None, :], (rows < n)[:, None] & inside[None, :], 0.0)
    b = tl.load(p + columns.to(tl.int64)[:, None] * d + along[None, :], (columns < m)[:, None] & inside[None, :], 0.0)
    return tl.dot(a, tl.trans(b), input_precision=PRECISION), b


@triton.jit
def forward_kernel(
    z, p, z_id, p_id, factors, out, n, m, d, low, span, most,
    SHARED: tl.constexpr, KIND: tl.constexpr, DETACH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out_i = log Σ_j e^{φ(s_ij)} over columns with another id."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    own = tl.load(z_id + rows, rows < n, -1)
    factor = low if SHARED else tl.load(factors + rows, rows < n, 0.0)[:, None] if KIND == 0 else 0.0
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    for start in range(0, m, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        s, _ = _similarity(z, p, rows, columns, n, m, d, WIDTH, PRECISION)
        logit, _ = _logit(s, factor, low, span, KIND, DETACH)
        other = tl.load(p_id + columns, columns < m, -2)
        drop = (own[:, None] == other[None, :]) | (columns >= m)[None, :]
        if SHARED:
            total += tl.sum(tl.where(drop, 0.0, tl.exp2((logit - most) * 1.4426950408889634)), 1)
        else:
            logit = tl.where(drop, float("-inf"), logit)
            highest = tl.maximum(top, tl.max(logit, 1))
            safe = tl.where(highest == float("-inf"), 0.0, highest)
            total = total * tl.exp(top - safe) + tl.sum(tl.exp(logit - safe[:, None]), 1)
            top = highest
    top = most + total * 0.0 if SHARED else top
    tl.store(out + rows, tl.where(total > 0, top + tl.log(total), float("-inf")), rows < n)


@triton.jit
def backward_kernel(
    z, p, z_id, p_id, factors, lse, gradient, out, n, m, d, low, span, most,
    OWN: tl.constexpr, OTHER: tl.constexpr, SHARED: tl.constexpr, KIND: tl.constexpr, DETACH: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out_i = Σ_j (OWN · g_i w_ij + OTHER · g_j w_ji) p_j; with OTHER the columns are anchors, with OWN the rows are.

    With SHARED, `gradient` is g e^{most - lse} already.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    own = tl.load(z_id + rows, rows < n, -1)
    if OWN:
        row_gradient = tl.load(gradient + rows, rows < n, 0.0)
        if not SHARED:
            row_lse = tl.load(lse + rows, rows < n, 0.0)
            row_lse = tl.where(row_lse == float("-inf"), 0.0, row_lse)
            row_factor = tl.load(factors + rows, rows < n, 0.0)[:, None] if KIND == 0 else 0.0
    moved = tl.zeros((ROWS, WIDTH), tl.float32)
    for start in range(0, m, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        s, b = _similarity(z, p, rows, columns, n, m, d, WIDTH, PRECISION)
        other = tl.load(p_id + columns, columns < m, -2)
        drop = (own[:, None] == other[None, :]) | (columns >= m)[None, :]
        column_gradient = tl.load(gradient + columns, columns < m, 0.0) if OTHER else 0.0
        if SHARED:
            logit, slope = _logit(s, low, low, span, KIND, DETACH)
            weight = tl.exp2((logit - most) * 1.4426950408889634) * slope
            if OWN and OTHER:
                weight *= row_gradient[:, None] + column_gradient[None, :]
            elif OWN:
                weight *= row_gradient[:, None]
            else:
                weight *= column_gradient[None, :]
        else:
            weight = tl.zeros((ROWS, COLUMNS), tl.float32)
            if OWN:
                logit, slope = _logit(s, row_factor, low, span, KIND, DETACH)
                weight += tl.exp(logit - row_lse[:, None]) * slope * row_gradient[:, None]
            if OTHER:
                column_lse = tl.load(lse + columns, columns < m, 0.0)
                column_lse = tl.where(column_lse == float("-inf"), 0.0, column_lse)
                column_factor = tl.load(factors + columns, columns < m, 0.0)[None, :] if KIND == 0 else 0.0
                logit, slope = _logit(s, column_factor, low, span, KIND, DETACH)
                weight += tl.exp(logit - column_lse[None, :]) * slope * column_gradient[None, :]
        weight = tl.where(drop, 0.0, weight)
        moved += tl.dot(weight.to(b.dtype), b, input_precision=PRECISION)
    along = tl.arange(0, WIDTH)
    place = rows.to(tl.int64)[:, None] * d + along[None, :]
    tl.store(out + place, moved, (rows < n)[:, None] & (along < d)[None, :])
