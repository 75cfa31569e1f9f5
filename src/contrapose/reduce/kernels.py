# mypy: ignore-errors
"""Triton kernels of `fused`, which documents what they compute and what their arguments are.

GPUs have an instruction for 2^x and none for e^x, so exponents are in base 2 here: `times`, `shift`, factors and
log-sum-exps are multiplied by log2 e inside a kernel. `out`, `lse` and everything outside the kernels are natural
logarithms.

    z, p                  row and column operands, (n, WIDTH) and (m, WIDTH): d coordinates, padded with zeros
    z_id, p_id            their sample ids: a column with the id of the row is not a negative
    period, id_shift      the id of row r is r and that of column c is c + id_shift, modulo `period`; 1 if ids are unknown
    columns_per_program   program (i, k) reduces rows [i · ROWS, (i + 1) · ROWS) over the k-th range of columns
    CONSTANT_SHIFT        e^{φ - shift} with one `shift` for all rows, in place of a running maximum per row
    SECOND                what is summed beside Σ e^φ: 0 nothing, 1 Σ s e^φ, 2 Σ e^{φ2} for another multiple φ2 of φ
    HARDEST_ONLY          weigh negatives by their membership among the hardest: see `membership_of`
    FULL_TILES            the last tile of columns is full, so that loads need no mask
"""

import triton
import triton.language as tl

# Similarities this close to a threshold are ties. Sums of products in another order differ by less, so that forward and
# backward pass, whose tiles differ, agree on which negatives are ties.
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
    s, low, span, bend, TEMPERATURE: tl.constexpr, DETACH: tl.constexpr, FAST: tl.constexpr, ROUGH: tl.constexpr
):
    """Return s / τ(s) and its derivative, or s and 1 without a TEMPERATURE.

    TEMPERATURE is a function (s, low, span, bend, ROUGH) -> τ(s), τ'(s). With DETACH, τ is a constant in the
    derivative.
    """
    if TEMPERATURE is None:
        base, slope = s, 1.0
    else:
        tau, tau_slope = TEMPERATURE(s, low, span, bend, ROUGH)
        inverse = reciprocal(tau, FAST)
        base, slope = s * inverse, inverse
        if not DETACH:
            slope = (tau - s * tau_slope) * inverse * inverse
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
    """Return x (ROWS, COLUMNS) with 0 for each pair that is not one of negatives."""
    if any_excluded:
        # Selected, not multiplied: an excluded entry may be NaN or inf.
        x = tl.where(excluded_pairs(row_ids, p_id, columns, m, FULL_TILES), 0.0, x)
    return x


@triton.jit
def membership_of(s, threshold, tie_weight):
    """Return the weight of a negative among the hardest: 1 above the threshold, `tie_weight` at it, 0 below."""
    return tl.where(s > threshold + BAND, 1.0, tl.where(s >= threshold - BAND, tie_weight, 0.0))


@triton.jit
def program_rows(z_id, n, ROWS: tl.constexpr):
    """Return a program's first row, its rows, a mask of those that exist, their ids, and its range of the columns."""
    first = tl.program_id(0) * ROWS
    rows = first + tl.arange(0, ROWS)
    return first, rows, rows < n, tl.load(z_id + rows, rows < n, -1), tl.program_id(1)


@triton.jit
def forward_kernel(
    z, p, z_id, p_id, factors, thresholds, tie_weights, out, second, mean_row, n, m, d, columns_per_program, period, id_shift,
    times, times2, low, span, bend, shift, shift2,
    CONSTANT_SHIFT: tl.constexpr, TEMPERATURE: tl.constexpr, DETACH: tl.constexpr, SECOND: tl.constexpr,
    HARDEST_ONLY: tl.constexpr, MEAN_ROW: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    PRECISION: tl.constexpr, FULL_TILES: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Reduce some rows over one range of the columns: `out` = log Σ e^φ, and `second` as SECOND says.

        SECOND 0    with a constant shift 1 / Σ e^{φ - shift}, which saves the backward kernel a division for each row
        SECOND 1    the expectation Σ s e^φ / Σ e^φ
        SECOND 2    log Σ e^{φ2}

    With MEAN_ROW, `mean_row` is the mean of the columns' vectors under the softmax, each times the slope of s / τ(s):
    the gradient of the log-sum-exp with respect to the row, divided by its factor.
    """
    first, rows, inside, row_ids, split = program_rows(z_id, n, ROWS)
    if HARDEST_ONLY:
        row_threshold = tl.load(thresholds + rows, inside, 0.0)[:, None]
        row_tie_weight = tl.load(tie_weights + rows, inside, 0.0)[:, None]
    if not CONSTANT_SHIFT:
        factor = tl.load(factors + rows, inside, 0.0)[:, None] * LOG2E
    x = z.load([first, 0])
    running_max = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    total2 = tl.zeros((ROWS,), tl.float32)
    mean = tl.zeros((ROWS, WIDTH), tl.float32)
    for start in range(split * columns_per_program, min(m, (split + 1) * columns_per_program), COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        y = p.load([start, 0])
        s = tl.dot(x, tl.trans(y), input_precision=PRECISION)
        base, slope = over_temperature(s, low, span, bend, TEMPERATURE, DETACH, FAST, y.dtype == tl.bfloat16)
        any_excluded = may_share_ids(first, start + id_shift, period, ROWS, COLUMNS) | (start + COLUMNS > m)
        if CONSTANT_SHIFT:
            e = tl.exp2(base * times - shift)
        else:
            excluded = excluded_pairs(row_ids, p_id, columns, m, FULL_TILES)
            logit = tl.where(excluded, float("-inf"), base * factor)
            # Online softmax: what has been summed so far is rescaled whenever the maximum rises.
            new_max = tl.maximum(running_max, tl.max(logit, 1))
            # A row without negatives so far: -inf - (-inf) would be NaN.
            finite_max = tl.where(new_max == float("-inf"), 0.0, new_max)
            rescale = tl.exp2(running_max - finite_max)
            total *= rescale
            total2 *= rescale
            if MEAN_ROW:
                mean *= rescale[:, None]
            running_max = new_max
            e = tl.exp2(logit - finite_max[:, None])
        e = zero_excluded(e, row_ids, p_id, columns, m, any_excluded, FULL_TILES)
        if HARDEST_ONLY:
            membership = membership_of(s, row_threshold, row_tie_weight)
            e *= membership
        total += tl.sum(e, 1)
        if SECOND == 1:
            total2 += tl.sum(e * s, 1)
        if SECOND == 2:
            e2 = tl.exp2(base * times2 - shift2)
            e2 = zero_excluded(e2, row_ids, p_id, columns, m, any_excluded, FULL_TILES)
            if HARDEST_ONLY:
                e2 *= membership
            total2 += tl.sum(e2, 1)
        if MEAN_ROW:
            mean = tl.dot((e * slope).to(y.dtype), y, mean, input_precision=PRECISION)
    if CONSTANT_SHIFT:
        running_max = shift + total * 0.0  # a tensor of rows, as in the other branch
    # `!= 0` is also true of NaN, which must reach the output. Offsets in 64 bits: splits · n · d may exceed 2³¹.
    nonzero, offset = total != 0, split.to(tl.int64) * n + rows
    tl.store(out + offset, tl.where(nonzero, (running_max + tl.log2(total)) * LN2, float("-inf")), inside)
    if SECOND == 0 and CONSTANT_SHIFT:
        tl.store(second + offset, tl.where(nonzero, 1.0 / total, 0.0), inside)
    if SECOND == 1:
        tl.store(second + offset, tl.where(nonzero, total2 / total, 0.0), inside)
    if SECOND == 2:
        tl.store(second + offset, tl.where(total2 != 0, (shift2 + tl.log2(total2)) * LN2, float("-inf")), inside)
    if MEAN_ROW:
        mean *= tl.where(nonzero, 1.0 / total, 0.0)[:, None]
        coordinates = tl.arange(0, WIDTH)
        tl.store(
            mean_row + offset[:, None] * d + coordinates[None, :], mean, inside[:, None] & (coordinates < d)[None, :]
        )


@triton.jit
def _combined_sum(parts, rows, inside, n, splits):
    """Return the largest of each row's partial log-sums, x_max (0 if all are -inf), and Σ_k e^{x_k - x_max}."""
    largest = tl.load(parts + rows, inside, float("-inf"))
    for k in range(1, splits):
        largest = tl.maximum(largest, tl.load(parts + k * n + rows, inside, float("-inf")))
    largest = tl.where(largest == float("-inf"), 0.0, largest)
    total = tl.zeros_like(largest)
    for k in range(splits):
        total += tl.exp2((tl.load(parts + k * n + rows, inside, float("-inf")) - largest) * LOG2E)
    return largest, total


@triton.jit
def combine_kernel(
    parts, parts2, out, second, n, splits, shift, CONSTANT_SHIFT: tl.constexpr, SECOND: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """Combine partial results of `forward_kernel` over ranges of the columns, (splits, n), to whole rows, (n,)."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < n
    largest, total = _combined_sum(parts, rows, inside, n, splits)
    nonzero = total != 0
    log_total = tl.where(nonzero, largest + tl.log2(total) * LN2, float("-inf"))
    tl.store(out + rows, log_total, inside)
    if SECOND == 0 and CONSTANT_SHIFT:
        tl.store(second + rows, tl.where(nonzero, tl.exp2(shift - log_total * LOG2E), 0.0), inside)
    if SECOND == 1:
        mean = tl.zeros_like(total)
        for k in range(splits):
            weight = tl.exp2((tl.load(parts + k * n + rows, inside, float("-inf")) - largest) * LOG2E)
            mean += weight * tl.load(parts2 + k * n + rows, inside, 0.0)
        tl.store(second + rows, tl.where(nonzero, mean / total, 0.0), inside)
    if SECOND == 2:
        largest2, total2 = _combined_sum(parts2, rows, inside, n, splits)
        tl.store(second + rows, tl.where(total2 != 0, largest2 + tl.log2(total2) * LN2, float("-inf")), inside)


@triton.jit
def _load(x, index, inside, FULL: tl.constexpr):
    """Load one number per index, 0 outside; with FULL all are inside, and no mask is needed."""
    return tl.load(x + index) if FULL else tl.load(x + index, inside, 0.0)


@triton.jit
def load_anchors(
    factors, thresholds, tie_weights, lse, gradient, gradient2, index, inside,
    CONSTANT_SHIFT: tl.constexpr, SECOND: tl.constexpr, HARDEST_ONLY: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """Load what the weights of some anchors need: a, b, factor, lse · log2 e, threshold, tie weight.

    What the flags do not ask for is replaced by `a`, and not read.
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
    if HARDEST_ONLY:
        threshold = _load(thresholds, index, inside, FULL)
        tie_weight = _load(tie_weights, index, inside, FULL)
    return a, b, factor, total, threshold, tie_weight


@triton.jit
def _mask_gradients(s, a, b, threshold, tie_weight):
    """Multiply the gradients of a row's statistics by each negative's membership among the hardest: see `membership_of`."""
    above, at_least = s > threshold + BAND, s >= threshold - BAND
    # Products with the weight of ties are one for each row, those with a membership would be one for each negative.
    return (
        tl.where(above, a, tl.where(at_least, a * tie_weight, 0.0)),
        tl.where(above, b, tl.where(at_least, b * tie_weight, 0.0)),
    )


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
    s, base, slope,
    row_a, row_b, row_factor, row_total, row_threshold, row_tie_weight,
    column_a, column_b, column_factor, column_total, column_threshold, column_tie_weight,
    times, times2, shift, shift2,
    ROWS_ARE_ANCHORS: tl.constexpr, COLUMNS_ARE_ANCHORS: tl.constexpr, CONSTANT_SHIFT: tl.constexpr,
    SECOND: tl.constexpr, FIXED_WEIGHTS: tl.constexpr, HARDEST_ONLY: tl.constexpr,
):  # fmt: skip
    """Return ∂L/∂s of a tile: of its rows' losses if rows are anchors, plus of its columns' losses if columns are.

    Row data have shape (ROWS, 1), column data (1, COLUMNS): see `load_anchors`. With one statistic and a constant shift,
    the result is still to be multiplied by `times` · ln 2.
    """
    if HARDEST_ONLY:
        if ROWS_ARE_ANCHORS:
            row_a, row_b = _mask_gradients(s, row_a, row_b, row_threshold, row_tie_weight)
        if COLUMNS_ARE_ANCHORS:
            column_a, column_b = _mask_gradients(s, column_a, column_b, column_threshold, column_tie_weight)
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
            weight += _similarity_gradient(s, slope, e, row_factor, row_a, row_b, SECOND, FIXED_WEIGHTS)
        if COLUMNS_ARE_ANCHORS:
            e = tl.exp2(base * (column_factor * LOG2E) - column_total)
            weight += _similarity_gradient(s, slope, e, column_factor, column_a, column_b, SECOND, FIXED_WEIGHTS)
    return weight


@triton.jit
def backward_kernel(
    z, p, z_id, p_id, factors, thresholds, tie_weights, lse, gradient, gradient2, out, n, m, d, columns_per_program,
    period, id_shift, times, times2, low, span, bend, shift, shift2,
    ROWS_ARE_ANCHORS: tl.constexpr, COLUMNS_ARE_ANCHORS: tl.constexpr, CONSTANT_SHIFT: tl.constexpr,
    TEMPERATURE: tl.constexpr, DETACH: tl.constexpr, SECOND: tl.constexpr, FIXED_WEIGHTS: tl.constexpr,
    HARDEST_ONLY: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
    FULL_TILES: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Compute out_i = Σ_j (∂L_i/∂s_ij + ∂L_j/∂s_ji) p_j: the first term if rows are anchors, the second if columns are.

    Both are where anchors and pool are one tensor. Factors, thresholds, log-sum-exps and gradients belong to the
    anchors. The gradient of an anchor without negatives may be NaN: all its columns are excluded. With one statistic
    and a constant shift `gradient2` is 1 / Σ e^{φ - shift}.
    """
    first, rows, inside, row_ids, split = program_rows(z_id, n, ROWS)
    none = tl.zeros((ROWS,), tl.float32)
    a, b, factor, total, threshold, tie_weight = none, none, none, none, none, none
    if ROWS_ARE_ANCHORS:
        a, b, factor, total, threshold, tie_weight = load_anchors(
            factors, thresholds, tie_weights, lse, gradient, gradient2, rows, inside,
            CONSTANT_SHIFT, SECOND, HARDEST_ONLY, False,
        )  # fmt: skip
    x = z.load([first, 0])
    gradient_sum = tl.zeros((ROWS, WIDTH), tl.float32)
    for start in range(split * columns_per_program, min(m, (split + 1) * columns_per_program), COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        y = p.load([start, 0])
        s = tl.dot(x, tl.trans(y), input_precision=PRECISION)
        base, slope = over_temperature(s, low, span, bend, TEMPERATURE, DETACH, FAST, y.dtype == tl.bfloat16)
        unread = tl.zeros((COLUMNS,), tl.float32)
        a2, b2, factor2, total2, threshold2, tie_weight2 = unread, unread, unread, unread, unread, unread
        if COLUMNS_ARE_ANCHORS:
            a2, b2, factor2, total2, threshold2, tie_weight2 = load_anchors(
                factors, thresholds, tie_weights, lse, gradient, gradient2, columns, columns < m,
                CONSTANT_SHIFT, SECOND, HARDEST_ONLY, FULL_TILES,
            )  # fmt: skip
        weight = similarity_weights(
            s, base, slope,
            a[:, None], b[:, None], factor[:, None], total[:, None], threshold[:, None], tie_weight[:, None],
            a2[None, :], b2[None, :], factor2[None, :], total2[None, :], threshold2[None, :], tie_weight2[None, :],
            times, times2, shift, shift2,
            ROWS_ARE_ANCHORS, COLUMNS_ARE_ANCHORS, CONSTANT_SHIFT, SECOND, FIXED_WEIGHTS, HARDEST_ONLY,
        )  # fmt: skip
        any_excluded = may_share_ids(first, start + id_shift, period, ROWS, COLUMNS) | (start + COLUMNS > m)
        weight = zero_excluded(weight, row_ids, p_id, columns, m, any_excluded, FULL_TILES)
        gradient_sum = tl.dot(weight.to(y.dtype), y, gradient_sum, input_precision=PRECISION)
    if CONSTANT_SHIFT and SECOND == 0:
        gradient_sum *= times * LN2  # once, after the loop
    coordinates = tl.arange(0, WIDTH)
    offset = (split.to(tl.int64) * n + rows)[:, None] * d + coordinates[None, :]
    tl.store(out + offset, gradient_sum, inside[:, None] & (coordinates < d)[None, :])
