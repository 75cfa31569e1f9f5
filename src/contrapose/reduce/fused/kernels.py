# mypy: ignore-errors
"""Triton kernels of the fused engine, whose module explains the algorithm. The kernels share these arguments:

z, p                  row and column operands, (n, WIDTH) and (m, WIDTH): d coordinates, padded with zeros
z_id, p_id            sample ids of rows and columns: a column with the row's id is not a negative
period, id_shift      the id of row r is r and that of column c is c + id_shift, modulo `period`; 1 if ids are unknown
columns_per_program   program (i, k) reduces rows [i · ROWS, (i + 1) · ROWS) over the k-th range of columns
CONSTANT_SHIFT        e^{φ - shift} with one `shift` for all rows, instead of a running maximum per row
SECOND                the sum in addition to Σ e^φ: 0 none, 1 Σ s e^φ, 2 Σ e^{φ2} for another multiple φ2 of φ
HARDEST_ONLY          only negatives at or above the row's threshold count: see `compare_with_threshold`
CEILING               only negatives at or below the row's threshold count
FULL_TILES            the last tile of columns is full, so that loads need no mask
"""

import triton
import triton.language as tl

from contrapose.reduce.kernel_math import (
    LN2,
    LOG2E,
    compare_with_threshold,
    count_hardest,
    excluded_pairs,
    load_anchors,
    may_share_ids,
    over_temperature,
    program_rows,
    similarity_weights,
    store_hardest,
    zero_excluded,
)


@triton.jit
def forward_kernel(
    z, p, z_id, p_id, factors, thresholds, out, second, mean_row, n, m, d, columns_per_program, period, id_shift,
    times, times2, low, span, curvature, shift, shift2,
    CONSTANT_SHIFT: tl.constexpr, TEMPERATURE: tl.constexpr, DETACH: tl.constexpr, SECOND: tl.constexpr,
    HARDEST_ONLY: tl.constexpr, CEILING: tl.constexpr, MEAN_ROW: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr, PRECISION: tl.constexpr, FULL_TILES: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Reduce some rows over one range of the columns: `out` = log Σ e^φ, and `second` depends on SECOND.

        SECOND 0    with a constant shift, 1 / Σ e^{φ - shift}, which saves the backward kernel a division for each row
        SECOND 1    the expectation Σ s e^φ / Σ e^φ
        SECOND 2    log Σ e^{φ2}

    With MEAN_ROW, `mean_row` is the mean of the columns' vectors under the softmax, each times the slope of s / τ(s):
    the gradient of the log-sum-exp with respect to the row, divided by its factor.

    With HARDEST_ONLY, `out` is (planes, splits, n), as `hardest.sums` reads it: sums over the negatives above the threshold's
    ties, sums that include the ties, and the counts of both. The weight of ties follows from these counts. It must not come
    from the kernel that found the threshold, whose products may be rounded differently.
    """
    first, rows, inside, row_ids, split = program_rows(z_id, n, ROWS)
    if HARDEST_ONLY or CEILING:
        row_threshold = tl.load(thresholds + rows, inside, 0.0)[:, None]
    if HARDEST_ONLY:
        above, above2 = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
        above_count, count = tl.zeros((ROWS,), tl.int32), tl.zeros((ROWS,), tl.int32)
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
        base, slope = over_temperature(s, low, span, curvature, TEMPERATURE, DETACH, FAST, y.dtype == tl.bfloat16)
        any_excluded = may_share_ids(first, start + id_shift, period, ROWS, COLUMNS) | (start + COLUMNS > m)
        if CONSTANT_SHIFT:
            e = tl.exp2(base * times - shift)
        else:
            excluded = excluded_pairs(row_ids, p_id, columns, m, FULL_TILES)
            if CEILING:
                excluded |= s > row_threshold
            logit = tl.where(excluded, float("-inf"), base * factor)
            # Online softmax: the partial sums are rescaled whenever the maximum rises.
            new_max = tl.maximum(running_max, tl.max(logit, 1))
            # A row without negatives so far: -inf - (-inf) would be NaN.
            finite_max = tl.where(new_max == float("-inf"), 0.0, new_max)
            rescale = tl.exp2(running_max - finite_max)
            total *= rescale
            total2 *= rescale
            if HARDEST_ONLY:
                above *= rescale
                above2 *= rescale
            if MEAN_ROW:
                mean *= rescale[:, None]
            running_max = new_max
            e = tl.exp2(logit - finite_max[:, None])
        e = zero_excluded(e, row_ids, p_id, columns, m, any_excluded, FULL_TILES)
        if CEILING:
            e = tl.where(s > row_threshold, 0.0, e)
        if HARDEST_ONLY:
            marked = s
            if any_excluded:
                marked = tl.where(excluded_pairs(row_ids, p_id, columns, m, FULL_TILES), -4.0, s)
            below, not_above = compare_with_threshold(marked, row_threshold)
            tile_above, tile_count = count_hardest(below, not_above, 1)
            above_count += tile_above
            count += tile_count
            e = tl.where(below, 0.0, e)
            above += tl.sum(tl.where(not_above, 0.0, e), 1)
            if SECOND == 1:
                above2 += tl.sum(tl.where(not_above, 0.0, e * s), 1)
        total += tl.sum(e, 1)
        if SECOND == 1:
            total2 += tl.sum(e * s, 1)
        if SECOND == 2:
            e2 = tl.exp2(base * times2 - shift2)
            e2 = zero_excluded(e2, row_ids, p_id, columns, m, any_excluded, FULL_TILES)
            if CEILING:
                e2 = tl.where(s > row_threshold, 0.0, e2)
            if HARDEST_ONLY:
                e2 = tl.where(below, 0.0, e2)
                above2 += tl.sum(tl.where(not_above, 0.0, e2), 1)
            total2 += tl.sum(e2, 1)
        if MEAN_ROW:
            mean = tl.dot((e * slope).to(y.dtype), y, mean, input_precision=PRECISION)
    if CONSTANT_SHIFT:
        running_max = shift + total * 0.0  # a tensor of rows, as in the other branch
    # Offsets in 64 bits: splits · n · d may exceed 2³¹.
    offset = split.to(tl.int64) * n + rows
    if HARDEST_ONLY:
        plane = tl.num_programs(1).to(tl.int64) * n
        store_hardest(
            out + offset, plane, inside, above, total, above_count, count, above2, total2, running_max,
            CONSTANT_SHIFT=CONSTANT_SHIFT, SECOND=SECOND,
        )  # fmt: skip
    else:
        nonzero = total != 0  # also true of NaN, which must reach the output
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
                mean_row + offset[:, None] * d + coordinates[None, :],
                mean,
                inside[:, None] & (coordinates < d)[None, :],
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
    """Combine partial results of `forward_kernel` over ranges of the columns, (splits, n), into results of whole rows, (n,)."""
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
def backward_kernel(
    z, p, z_id, p_id, factors, thresholds, tie_weights, lse, gradient, gradient2, out, n, m, d, columns_per_program,
    period, id_shift, times, times2, low, span, curvature, shift, shift2,
    ROWS_ARE_ANCHORS: tl.constexpr, COLUMNS_ARE_ANCHORS: tl.constexpr, CONSTANT_SHIFT: tl.constexpr,
    TEMPERATURE: tl.constexpr, DETACH: tl.constexpr, SECOND: tl.constexpr, FIXED_WEIGHTS: tl.constexpr,
    HARDEST_ONLY: tl.constexpr, CEILING: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    PRECISION: tl.constexpr, FULL_TILES: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Compute out_i = Σ_j (∂L_i/∂s_ij + ∂L_j/∂s_ji) p_j: the first term if rows are anchors, the second if columns are.

    Both are anchors if anchors and pool are one tensor. Factors, thresholds, log-sum-exps and gradients belong to the
    anchors. The gradient of an anchor without negatives may be NaN, since all its columns are excluded. With one statistic
    and a constant shift, `gradient2` is 1 / Σ e^{φ - shift}.
    """
    first, rows, inside, row_ids, split = program_rows(z_id, n, ROWS)
    none = tl.zeros((ROWS,), tl.float32)
    a, b, factor, total, threshold, tie_weight = none, none, none, none, none, none
    if ROWS_ARE_ANCHORS:
        a, b, factor, total, threshold, tie_weight = load_anchors(
            factors, thresholds, tie_weights, lse, gradient, gradient2, rows, inside,
            CONSTANT_SHIFT, SECOND, HARDEST_ONLY, CEILING, False,
        )  # fmt: skip
    x = z.load([first, 0])
    gradient_sum = tl.zeros((ROWS, WIDTH), tl.float32)
    for start in range(split * columns_per_program, min(m, (split + 1) * columns_per_program), COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        y = p.load([start, 0])
        s = tl.dot(x, tl.trans(y), input_precision=PRECISION)
        base, slope = over_temperature(s, low, span, curvature, TEMPERATURE, DETACH, FAST, y.dtype == tl.bfloat16)
        unread = tl.zeros((COLUMNS,), tl.float32)
        a2, b2, factor2, total2, threshold2, tie_weight2 = unread, unread, unread, unread, unread, unread
        if COLUMNS_ARE_ANCHORS:
            a2, b2, factor2, total2, threshold2, tie_weight2 = load_anchors(
                factors, thresholds, tie_weights, lse, gradient, gradient2, columns, columns < m,
                CONSTANT_SHIFT, SECOND, HARDEST_ONLY, CEILING, FULL_TILES,
            )  # fmt: skip
        weight = similarity_weights(
            s, s, base, slope,
            a[:, None], b[:, None], factor[:, None], total[:, None], threshold[:, None], tie_weight[:, None],
            a2[None, :], b2[None, :], factor2[None, :], total2[None, :], threshold2[None, :], tie_weight2[None, :],
            times, times2, shift, shift2,
            ROWS_ARE_ANCHORS, COLUMNS_ARE_ANCHORS, CONSTANT_SHIFT, SECOND, FIXED_WEIGHTS, HARDEST_ONLY, CEILING,
        )  # fmt: skip
        any_excluded = may_share_ids(first, start + id_shift, period, ROWS, COLUMNS) | (start + COLUMNS > m)
        weight = zero_excluded(weight, row_ids, p_id, columns, m, any_excluded, FULL_TILES)
        gradient_sum = tl.dot(weight.to(y.dtype), y, gradient_sum, input_precision=PRECISION)
    if CONSTANT_SHIFT and SECOND == 0:
        gradient_sum *= times * LN2  # once, after the loop
    coordinates = tl.arange(0, WIDTH)
    offset = (split.to(tl.int64) * n + rows)[:, None] * d + coordinates[None, :]
    tl.store(out + offset, gradient_sum, inside[:, None] & (coordinates < d)[None, :])
