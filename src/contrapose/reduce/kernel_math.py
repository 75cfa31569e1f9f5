# mypy: ignore-errors
"""Triton functions that the kernels of several engines call: similarities, exponents, weights of negatives.

GPUs have an instruction for 2^x but none for e^x, so exponents are in base 2 inside a kernel: `times`, `shift`, factors and
log-sum-exps are multiplied by log2 e there. Outside the kernels, all logarithms are natural.
"""

import triton
import triton.language as tl

# Similarities this close to a threshold are ties. Adding the products in another order changes a similarity by less than this, so
# a threshold found by one kernel lies within another kernel's band.
BAND = tl.constexpr(1e-6)
LN2 = tl.constexpr(0.6931471805599453)
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def reciprocal(x, FAST: tl.constexpr):
    """Return 1 / x."""
    if FAST:  # one instruction, exact to the last bit or two; Triton's interpreter cannot run inline assembly
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=r,r", [x], tl.float32, True, 1)
    return 1.0 / x


@triton.jit
def over_temperature(
    s, low, span, curvature, TEMPERATURE: tl.constexpr, DETACH: tl.constexpr, FAST: tl.constexpr, ROUGH: tl.constexpr
):
    """Return s / τ(s) and its derivative, or s and 1 without a TEMPERATURE, which is a function of `profile_kernels`."""
    if TEMPERATURE is None:
        base, slope = s, 1.0
    else:
        base, slope = TEMPERATURE(s, low, span, curvature, DETACH, FAST, ROUGH)
    return base, slope


@triton.jit
def tile_similarities(
    z, p, row, column, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Return a tile of z · pᵀ, (ROWS, COLUMNS) from `row` and `column` on, summed over DEPTH coordinates at a time."""
    s = tl.zeros((ROWS, COLUMNS), tl.float32)
    for k in range(0, WIDTH, DEPTH):
        s = tl.dot(z.load([row, k]), tl.trans(p.load([column, k])), s, input_precision=PRECISION)
    return s


@triton.jit
def may_share_ids(row, column, period, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return whether a tile from `row` and `column` on can hold two equal ids, if those of row and column r are r % period."""
    # Comparing all ids of a tile takes a third of its instructions, and nearly all tiles hold negatives only.
    largest_distance = column - row + COLUMNS - 1
    return (largest_distance + period * (row // period + 1)) % period < ROWS + COLUMNS - 1


@triton.jit
def excluded_pairs(row_ids, p_id, columns, m, FULL_TILES: tl.constexpr):
    """Return (ROWS, COLUMNS) bool: true where a column is not a negative, or lies beyond the last column."""
    if FULL_TILES:
        return row_ids[:, None] == tl.load(p_id + columns)[None, :]
    return (row_ids[:, None] == tl.load(p_id + columns, columns < m, -2)[None, :]) | (columns >= m)[None, :]


@triton.jit
def zero_excluded(x, row_ids, p_id, columns, m, any_excluded, FULL_TILES: tl.constexpr):
    """Return x (ROWS, COLUMNS) with 0 for each pair that is not a negative."""
    if any_excluded:
        # Selected, not multiplied: an excluded entry may be NaN or inf.
        x = tl.where(excluded_pairs(row_ids, p_id, columns, m, FULL_TILES), 0.0, x)
    return x


@triton.jit
def compare_with_threshold(s, threshold):
    """Return which similarities are below an anchor's ties with its threshold, and which are not above these ties.

    Both are false for NaN, so NaN is kept when such entries are replaced by zeros.
    """
    return s < threshold - BAND, s <= threshold + BAND


@triton.jit
def count_hardest(below, not_above, AXIS: tl.constexpr):
    """Return the number of negatives above a threshold's ties, and the number including the ties, packed in one sum."""
    # A tile has fewer than 2¹⁵ columns.
    counts = tl.sum(tl.where(not_above, tl.where(below, 0, 1), 65537), AXIS)
    return counts >> 16, counts & 65535


@triton.jit
def store_hardest(
    here, plane, inside, above, total, above_count, count, above2, total2, largest,
    CONSTANT_SHIFT: tl.constexpr, SECOND: tl.constexpr,
):  # fmt: skip
    """Store the sums of some anchors above the threshold's ties and with the ties, in the planes that `hardest.sums` reads."""
    tl.store(here, above, inside)
    tl.store(here + plane, total, inside)
    tl.store(here + 2 * plane, above_count.to(tl.float32), inside)
    tl.store(here + 3 * plane, count.to(tl.float32), inside)
    if SECOND > 0:
        tl.store(here + 4 * plane, above2, inside)
        tl.store(here + 5 * plane, total2, inside)
    if not CONSTANT_SHIFT:
        tl.store(here + 6 * plane, largest, inside)


@triton.jit
def program_rows(z_id, n, ROWS: tl.constexpr):
    """Return a program's first row, its rows, a mask of those that exist, their ids, and its range of the columns."""
    first = tl.program_id(0) * ROWS
    rows = first + tl.arange(0, ROWS)
    return first, rows, rows < n, tl.load(z_id + rows, rows < n, -1), tl.program_id(1)


@triton.jit
def _load(x, index, inside, FULL: tl.constexpr):
    """Load one number per index, 0 outside; with FULL all are inside, and no mask is needed."""
    return tl.load(x + index) if FULL else tl.load(x + index, inside, 0.0)


@triton.jit
def load_anchors(
    factors, thresholds, tie_weights, lse, gradient, gradient2, index, inside,
    CONSTANT_SHIFT: tl.constexpr, SECOND: tl.constexpr, HARDEST_ONLY: tl.constexpr, CEILING: tl.constexpr,
    FULL: tl.constexpr,
):  # fmt: skip
    """Load the data for some anchors' weights: a, b, factor, lse · log2 e, threshold, tie weight.

    Data that the flags do not request is not read, and `a` takes its place.
    """
    a = _load(gradient, index, inside, FULL)
    b, factor, total, threshold, tie_weight = a, a, a, a, a
    if SECOND > 0 or CONSTANT_SHIFT:
        b = _load(gradient2, index, inside, FULL)
    if SECOND == 0 and CONSTANT_SHIFT:
        a *= b
    if not CONSTANT_SHIFT:
        factor = _load(factors, index, inside, FULL)
        total = _load(lse, index, inside, FULL) * LOG2E
    if HARDEST_ONLY or CEILING:
        threshold = _load(thresholds, index, inside, FULL)
    if HARDEST_ONLY:
        tie_weight = _load(tie_weights, index, inside, FULL)
    return a, b, factor, total, threshold, tie_weight


@triton.jit
def _mask_gradients(s, a, b, threshold, tie_weight):
    """Multiply the gradients of a row's statistics by each negative's membership among the hardest.

    Membership is 1 above the threshold, the weight of ties at it, and 0 below: see `compare_with_threshold`.
    """
    above, at_least = s > threshold + BAND, s >= threshold - BAND
    # Multiplying by the weight of ties takes one product per row; a membership would take one product per negative.
    return (
        tl.where(above, a, tl.where(at_least, a * tie_weight, 0.0)),
        tl.where(above, b, tl.where(at_least, b * tie_weight, 0.0)),
    )


@triton.jit
def _zero_above(s, threshold, x):
    """Return x with zeros where s exceeds the threshold."""
    return tl.where(s > threshold, 0.0, x)


@triton.jit
def _similarity_gradient(s, slope, e, factor, a, b, SECOND: tl.constexpr, FIXED_WEIGHTS: tl.constexpr):
    """Return ∂L/∂s from e = e^φ, φ' = slope · factor and the scaled gradients a, b of `scaled_gradients`."""
    if SECOND == 0:
        return e * (slope * (factor * a))
    if FIXED_WEIGHTS:
        return e * (slope * factor * a + b)
    return e * (slope * factor * (a + b * s) + b)


@triton.jit
def similarity_weights(
    s, limited, base, slope,
    row_a, row_b, row_factor, row_total, row_threshold, row_tie_weight,
    column_a, column_b, column_factor, column_total, column_threshold, column_tie_weight,
    times, times2, shift, shift2,
    ROWS_ARE_ANCHORS: tl.constexpr, COLUMNS_ARE_ANCHORS: tl.constexpr, CONSTANT_SHIFT: tl.constexpr,
    SECOND: tl.constexpr, FIXED_WEIGHTS: tl.constexpr, HARDEST_ONLY: tl.constexpr, CEILING: tl.constexpr,
):  # fmt: skip
    """Return ∂L/∂s of a tile, for its rows' losses if rows are anchors, plus its columns' losses if columns are anchors.

    Row data have shape (ROWS, 1), column data (1, COLUMNS): see `load_anchors`. With CEILING, an anchor's loss has no entries
    whose `limited` similarity, its own or a guide's, exceeds the anchor's threshold. With one statistic and a constant shift,
    the caller still has to multiply the result by `times` · ln 2.
    """
    if HARDEST_ONLY:
        if ROWS_ARE_ANCHORS:
            row_a, row_b = _mask_gradients(s, row_a, row_b, row_threshold, row_tie_weight)
        if COLUMNS_ARE_ANCHORS:
            column_a, column_b = _mask_gradients(s, column_a, column_b, column_threshold, column_tie_weight)
    if CEILING and CONSTANT_SHIFT:
        if ROWS_ARE_ANCHORS:
            row_a, row_b = _zero_above(limited, row_threshold, row_a), _zero_above(limited, row_threshold, row_b)
        if COLUMNS_ARE_ANCHORS:
            column_a = _zero_above(limited, column_threshold, column_a)
            column_b = _zero_above(limited, column_threshold, column_b)
    if CONSTANT_SHIFT:  # φ(s_ij) = φ(s_ji): one exponential serves both terms, only the gradients differ
        if ROWS_ARE_ANCHORS and COLUMNS_ARE_ANCHORS:
            a, b = row_a + column_a, row_b + column_b
        elif COLUMNS_ARE_ANCHORS:
            a, b = column_a, column_b
        else:
            a, b = row_a, row_b
        e = tl.exp2(base * times - shift)
        if SECOND == 2:
            weight = slope * (a * e + b * tl.exp2(base * times2 - shift2))
        elif SECOND == 1:
            weight = _similarity_gradient(s, slope, e, times * LN2, a, b, SECOND, FIXED_WEIGHTS)
        else:
            weight = e * slope * a
    else:
        weight = tl.zeros_like(s)
        if ROWS_ARE_ANCHORS:
            e = tl.exp2(base * (row_factor * LOG2E) - row_total)
            of_row = _similarity_gradient(s, slope, e, row_factor, row_a, row_b, SECOND, FIXED_WEIGHTS)
            if CEILING:  # all of it: e is infinite for an anchor whose candidates all exceed the ceiling
                of_row = _zero_above(limited, row_threshold, of_row)
            weight += of_row
        if COLUMNS_ARE_ANCHORS:
            e = tl.exp2(base * (column_factor * LOG2E) - column_total)
            of_column = _similarity_gradient(s, slope, e, column_factor, column_a, column_b, SECOND, FIXED_WEIGHTS)
            if CEILING:
                of_column = _zero_above(limited, column_threshold, of_column)
            weight += of_column
    return weight


@triton.jit
def softplus_and_sigmoid(x, HALF: tl.constexpr, FAST: tl.constexpr):
    """Return log2(1 + 2^x) and 2^x / (1 + 2^x). With HALF, the logarithm has five correct digits, in fewer operations."""
    if HALF:
        e = tl.exp2(tl.minimum(x, 126.0))
        one_plus = 1.0 + e
        # log(1 + e) loses the digits of a small e; two terms of its series keep more of them.
        value = tl.where(e < 2.0**-8, e * (LOG2E - e * (0.5 * LOG2E)), tl.maximum(tl.log2(one_plus), x))
        return value, e * reciprocal(one_plus, FAST)
    u = tl.exp2(-tl.abs(x))
    one_plus = 1.0 + u
    inverse = reciprocal(one_plus, FAST)
    # log(1 + u), including the digits of a small u that 1 + u would round off
    value = tl.maximum(x, 0.0) + tl.log2(one_plus) + (u - (one_plus - 1.0)) * inverse * LOG2E
    return value, tl.where(x >= 0, inverse, u * inverse)
