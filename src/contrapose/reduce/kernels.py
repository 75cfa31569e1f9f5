# mypy: ignore-errors
"""The Triton kernels of `fused`: what they compute, and what their arguments are, is said there.

Exponents are in base 2 here: `times`, `most`, factors and log-sum-exps inside a kernel are multiplied by log2 e.
"""

import triton
import triton.language as tl

BAND = tl.constexpr(1e-6)  # similarities this close to a threshold are ties: products in another order differ by less
LN2 = tl.constexpr(0.6931471805599453)
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _reciprocal(x, FAST: tl.constexpr):
    if FAST:  # one instruction, to the last bit or two; the interpreter has no machine code
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=r,r", [x], tl.float32, True, 1)
    return 1.0 / x


@triton.jit
def _over_temperature(
    s, low, span, bend, TEMPERATURE: tl.constexpr, DETACH: tl.constexpr, FAST: tl.constexpr, ROUGH: tl.constexpr
):
    """s / τ(s) and its slope; s itself without a TEMPERATURE, a function (s, low, span, bend, ROUGH) -> τ(s), τ'(s)."""
    if TEMPERATURE is None:
        base, slope = s, 1.0
    else:
        tau, tau_slope = TEMPERATURE(s, low, span, bend, ROUGH)
        inverse = _reciprocal(tau, FAST)
        base, slope = s * inverse, inverse
        if not DETACH:
            slope = (tau - s * tau_slope) * inverse * inverse
    return base, slope


@triton.jit
def _dropped(own, p_id, columns, m, EVEN: tl.constexpr):
    """(rows, columns) bool: true where a column is no negative. EVEN: no tile reaches beyond the last column."""
    if EVEN:
        return own[:, None] == tl.load(p_id + columns)[None, :]
    return (own[:, None] == tl.load(p_id + columns, columns < m, -2)[None, :]) | (columns >= m)[None, :]


@triton.jit
def _column(x, columns, m, EVEN: tl.constexpr):
    return tl.load(x + columns) if EVEN else tl.load(x + columns, columns < m, 0.0)


@triton.jit
def _member(s, cut, share):
    """1 above the threshold, a tie's share at it, 0 below."""
    return tl.where(s > cut + BAND, 1.0, tl.where(s >= cut - BAND, share, 0.0))


@triton.jit
def _rows(z_id, n, ROWS: tl.constexpr):
    """A program's first row, its rows, which of them there are, their ids, and its share of the columns."""
    first = tl.program_id(0) * ROWS
    rows = first + tl.arange(0, ROWS)
    return first, rows, rows < n, tl.load(z_id + rows, rows < n, -1), tl.program_id(1)


@triton.jit
def forward_kernel(
    z, p, z_id, p_id, factors, cut, share, out, second, moved, n, m, d, each, times, times2, low, span, bend, most, most2,
    SHARED: tl.constexpr, TEMPERATURE: tl.constexpr, DETACH: tl.constexpr, SECOND: tl.constexpr, HARD: tl.constexpr,
    GATHER: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
    EVEN: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Totals of some rows over one share of the columns; with GATHER the columns' mean under the softmax, times slope, too.

    With nothing else asked for and a constant shift, `second` is 1 / Σ e^{φ - most}.
    """
    first, rows, inside, own, split = _rows(z_id, n, ROWS)
    if HARD:
        row_cut, row_share = tl.load(cut + rows, inside, 0.0)[:, None], tl.load(share + rows, inside, 0.0)[:, None]
    if not SHARED:
        factor = tl.load(factors + rows, inside, 0.0)[:, None] * LOG2E
    x = z.load([first, 0])
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    total2 = tl.zeros((ROWS,), tl.float32)
    mean = tl.zeros((ROWS, WIDTH), tl.float32)
    for start in range(split * each, min(m, (split + 1) * each), COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        y = p.load([start, 0])
        s = tl.dot(x, tl.trans(y), input_precision=PRECISION)
        base, slope = _over_temperature(s, low, span, bend, TEMPERATURE, DETACH, FAST, y.dtype == tl.bfloat16)
        drop = _dropped(own, p_id, columns, m, EVEN)
        if SHARED:
            e = tl.exp2(base * times - most)
        else:
            logit = tl.where(drop, float("-inf"), base * factor)
            highest = tl.maximum(top, tl.max(logit, 1))
            safe = tl.where(highest == float("-inf"), 0.0, highest)
            shrink = tl.exp2(top - safe)
            total *= shrink
            total2 *= shrink
            if GATHER:
                mean *= shrink[:, None]
            top = highest
            e = tl.exp2(logit - safe[:, None])
        e = tl.where(drop, 0.0, e)
        if HARD:
            member = _member(s, row_cut, row_share)
            e *= member
        total += tl.sum(e, 1)
        if SECOND == 1:
            total2 += tl.sum(e * s, 1)
        if SECOND == 2:
            e2 = tl.where(drop, 0.0, tl.exp2(base * times2 - most2))
            if HARD:
                e2 *= member
            total2 += tl.sum(e2, 1)
        if GATHER:
            mean = tl.dot((e * slope).to(y.dtype), y, mean, input_precision=PRECISION)
    if SHARED:
        top = most + total * 0.0
    some, place = total != 0, split.to(tl.int64) * n + rows  # also what is no number
    tl.store(out + place, tl.where(some, (top + tl.log2(total)) * LN2, float("-inf")), inside)
    if SECOND == 0 and SHARED:
        tl.store(second + place, tl.where(some, 1.0 / total, 0.0), inside)
    if SECOND == 1:
        tl.store(second + place, tl.where(some, total2 / total, 0.0), inside)
    if SECOND == 2:
        tl.store(second + place, tl.where(total2 != 0, (most2 + tl.log2(total2)) * LN2, float("-inf")), inside)
    if GATHER:
        mean *= tl.where(some, 1.0 / total, 0.0)[:, None]
        along = tl.arange(0, WIDTH)
        tl.store(moved + place[:, None] * d + along[None, :], mean, inside[:, None] & (along < d)[None, :])


@triton.jit
def _joined(parts, rows, inside, n, splits):
    """The largest of some rows' partial log totals, and what all of them come to in relation to it."""
    top = tl.load(parts + rows, inside, float("-inf"))
    for k in range(1, splits):
        top = tl.maximum(top, tl.load(parts + k * n + rows, inside, float("-inf")))
    top = tl.where(top == float("-inf"), 0.0, top)
    total = tl.zeros_like(top)
    for k in range(splits):
        total += tl.exp2((tl.load(parts + k * n + rows, inside, float("-inf")) - top) * LOG2E)
    return top, total


@triton.jit
def join_kernel(
    parts, parts2, out, second, n, splits, most, SHARED: tl.constexpr, SECOND: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """Totals of whole rows from those of shares of the columns, (splits, n)."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < n
    top, total = _joined(parts, rows, inside, n, splits)
    some = total != 0
    log_total = tl.where(some, top + tl.log2(total) * LN2, float("-inf"))
    tl.store(out + rows, log_total, inside)
    if SECOND == 0 and SHARED:
        tl.store(second + rows, tl.where(some, tl.exp2(most - log_total * LOG2E), 0.0), inside)
    if SECOND == 1:
        mean = tl.zeros_like(total)
        for k in range(splits):
            weight = tl.exp2((tl.load(parts + k * n + rows, inside, float("-inf")) - top) * LOG2E)
            mean += weight * tl.load(parts2 + k * n + rows, inside, 0.0)
        tl.store(second + rows, tl.where(some, mean / total, 0.0), inside)
    if SECOND == 2:
        top2, total2 = _joined(parts2, rows, inside, n, splits)
        tl.store(second + rows, tl.where(total2 != 0, top2 + tl.log2(total2) * LN2, float("-inf")), inside)


@triton.jit
def _weighed(s, a, b, cut, share):
    """Gradients of a row's statistics, as far as a negative is a member of the hardest."""
    member = _member(s, cut, share)
    return a * member, b * member


@triton.jit
def _pull(s, slope, e, steep, a, b, SECOND: tl.constexpr, FIXED: tl.constexpr):
    """∂L/∂s of one side: from its weights and what `fused` made of the gradients of its statistics."""
    if SECOND == 0:
        return e * (slope * (steep * a))
    if FIXED:
        return e * (slope * steep * a + b)
    return e * (slope * steep * (a + b * s) + b)


@triton.jit
def backward_kernel(
    z, p, z_id, p_id, factors, cut, share, lse, gradient, gradient2, out, n, m, d, each,
    times, times2, low, span, bend, most, most2,
    OWN: tl.constexpr, OTHER: tl.constexpr, SHARED: tl.constexpr, TEMPERATURE: tl.constexpr, DETACH: tl.constexpr,
    SECOND: tl.constexpr, FIXED: tl.constexpr, HARD: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr, PRECISION: tl.constexpr, EVEN: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """out_i = Σ_j (OWN · ∂L_i/∂s_ij + OTHER · ∂L_j/∂s_ji) p_j; with OWN the rows are anchors, with OTHER the columns are.

    Factors, thresholds, totals and gradients are the anchors'; an anchor without negatives may have a gradient that is no
    number, since it moves nothing. With one statistic and a constant shift `gradient2` is 1 / Σ e^{φ - most}.
    """
    first, rows, inside, own, split = _rows(z_id, n, ROWS)
    if OWN:
        row_a = tl.load(gradient + rows, inside, 0.0)[:, None]
        row_b = tl.load(gradient2 + rows, inside, 0.0)[:, None] if SECOND > 0 or SHARED else 0.0
        if SECOND == 0 and SHARED:
            row_a *= row_b
        if HARD:
            row_cut, row_share = tl.load(cut + rows, inside, 0.0)[:, None], tl.load(share + rows, inside, 0.0)[:, None]
        if not SHARED:
            row_factor = tl.load(factors + rows, inside, 0.0)[:, None]
            row_total = tl.load(lse + rows, inside, 0.0)[:, None] * LOG2E
    x = z.load([first, 0])
    moved = tl.zeros((ROWS, WIDTH), tl.float32)
    for start in range(split * each, min(m, (split + 1) * each), COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        y = p.load([start, 0])
        s = tl.dot(x, tl.trans(y), input_precision=PRECISION)
        base, slope = _over_temperature(s, low, span, bend, TEMPERATURE, DETACH, FAST, y.dtype == tl.bfloat16)
        drop = _dropped(own, p_id, columns, m, EVEN)
        if OWN:
            a, b = row_a, row_b
            if HARD:
                a, b = _weighed(s, row_a, row_b, row_cut, row_share)
        if OTHER:
            other_a = _column(gradient, columns, m, EVEN)[None, :]
            other_b = _column(gradient2, columns, m, EVEN)[None, :] if SECOND > 0 or SHARED else 0.0
            if SECOND == 0 and SHARED:
                other_a *= other_b
            if HARD:
                column_cut = _column(cut, columns, m, EVEN)[None, :]
                column_share = _column(share, columns, m, EVEN)[None, :]
                other_a, other_b = _weighed(s, other_a, other_b, column_cut, column_share)
        if SHARED:  # e^φ is common to both sides: only the gradients differ
            if OWN and OTHER:
                a, b = a + other_a, b + other_b
            elif OTHER:
                a, b = other_a, other_b
            e = tl.exp2(base * times - most)
            if SECOND == 2:
                weight = slope * (a * e + b * tl.exp2(base * times2 - most2))
            elif SECOND == 1:
                weight = _pull(s, slope, e, times * LN2, a, b, SECOND, FIXED)
            else:
                weight = e * slope * a  # times `times`, once, at the end
        else:
            weight = tl.zeros((ROWS, COLUMNS), tl.float32)
            if OWN:
                e = tl.exp2(base * (row_factor * LOG2E) - row_total)
                weight += _pull(s, slope, e, row_factor, a, b, SECOND, FIXED)
            if OTHER:
                column_factor = _column(factors, columns, m, EVEN)[None, :]
                column_total = _column(lse, columns, m, EVEN)[None, :] * LOG2E
                e = tl.exp2(base * (column_factor * LOG2E) - column_total)
                weight += _pull(s, slope, e, column_factor, other_a, other_b, SECOND, FIXED)
        weight = tl.where(drop, 0.0, weight)
        moved = tl.dot(weight.to(y.dtype), y, moved, input_precision=PRECISION)
    if SHARED and SECOND == 0:
        moved *= times * LN2
    along = tl.arange(0, WIDTH)
    place = (split.to(tl.int64) * n + rows)[:, None] * d + along[None, :]
    tl.store(out + place, moved, inside[:, None] & (along < d)[None, :])


@triton.jit
def _two(s, start_at, step, k: tl.constexpr):
    """How many of each row are at or above thresholds k and k + 1, in the low and the high half of a number."""
    return tl.sum(tl.where(s >= start_at + k * step, 1, 0) + tl.where(s >= start_at + (k + 1) * step, 65536, 0), 1)


@triton.jit
def count_kernel(
    z, p, z_id, p_id, start_at, out, n, m, d, each, step,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """How many of a row's negatives are at or above each of 8 thresholds, `start_at_i` + k · `step`."""
    first, rows, inside, own, split = _rows(z_id, n, ROWS)
    edge = tl.load(start_at + rows, inside, 0.0)[:, None]
    x = z.load([first, 0])
    none = tl.zeros((ROWS,), tl.int32)
    low0, low1, low2, low3, high0, high1, high2, high3 = none, none, none, none, none, none, none, none
    for start in range(split * each, min(m, (split + 1) * each), COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        s = tl.dot(x, tl.trans(p.load([start, 0])), input_precision=PRECISION)
        s = tl.where(_dropped(own, p_id, columns, m, EVEN), -3.0, s)
        c0, c1, c2, c3 = _two(s, edge, step, 0), _two(s, edge, step, 2), _two(s, edge, step, 4), _two(s, edge, step, 6)
        low0, low1, low2, low3 = low0 + (c0 & 65535), low1 + (c1 & 65535), low2 + (c2 & 65535), low3 + (c3 & 65535)
        high0, high1, high2, high3 = high0 + (c0 >> 16), high1 + (c1 >> 16), high2 + (c2 >> 16), high3 + (c3 >> 16)
    place = out + (split.to(tl.int64) * n + rows) * 8
    tl.store(place, low0, inside)
    tl.store(place + 1, high0, inside)
    tl.store(place + 2, low1, inside)
    tl.store(place + 3, high1, inside)
    tl.store(place + 4, low2, inside)
    tl.store(place + 5, high2, inside)
    tl.store(place + 6, low3, inside)
    tl.store(place + 7, high3, inside)
