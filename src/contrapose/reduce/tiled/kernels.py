# mypy: ignore-errors
"""Triton kernels of the tiled engine: one program computes one tile of the similarity matrix, whatever the width of the rows.

    z, p                      row and column operands, (n, width) and (m, width)
    q, r                      likewise of a guide; None without one
    z_id, p_id                sample ids of rows and columns: a column with the row's id is not a negative
    row_start, row_end        the block of rows in this launch; likewise for columns
    TRIANGLE                  rows and columns are the same block: only tiles on and above the diagonal are computed,
                              and each tile also stands for its transpose

    CEILING                   only negatives whose similarity (1), or the guide's (2), is at most the anchor's threshold count

Factors, thresholds, log-sum-exps and gradients belong to the anchors; they are indexed like the rows and, if columns are
anchors too, like the columns. Exponents are in base 2 inside a kernel and natural logarithms outside.
"""

import triton
import triton.language as tl

from contrapose.reduce.kernel_math import (
    LN2,
    LOG2E,
    compare_with_threshold,
    count_hardest,
    load_anchors,
    over_temperature,
    similarity_weights,
    softplus_and_sigmoid,
    store_hardest,
    tile_similarities,
)
from contrapose.reduce.tiled.tile_math import (
    excluded_by_number,
    excluded_in_tile,
    replace_excluded,
    tile_of_program,
    two_tile_similarities,
)


@triton.jit
def _sum_and_store(
    s, limited, logit, e, e2, factor, threshold, parts, tile, index, count, inside, planes_stride, AXIS: tl.constexpr,
    CONSTANT_SHIFT: tl.constexpr, SECOND: tl.constexpr, HARDEST_ONLY: tl.constexpr, CEILING: tl.constexpr,
):  # fmt: skip
    """Sum a tile over one axis, and store the sums of some anchors in row `tile` of `parts`.

    Planes are Σ e^{φ - largest}, the second sum of SECOND and, without a constant shift, the largest exponent. A constant shift
    replaces the largest exponent; `e` and `e2` are then e^{φ - shift} and e^{φ2 - shift2}. Otherwise φ is `logit` · `factor`.
    With HARDEST_ONLY, `hardest.sums` documents the planes.
    """
    here = parts + tile.to(tl.int64) * count + index
    if CEILING:
        if CONSTANT_SHIFT:
            e, e2 = tl.where(limited > threshold, 0.0, e), tl.where(limited > threshold, 0.0, e2)
        else:
            logit = tl.where(limited > threshold, float("-inf"), logit)
    if not CONSTANT_SHIFT:
        # Selected: the factor may be 0 outside of the matrix, and 0 · -inf would be NaN.
        scaled = tl.where(logit == float("-inf"), logit, logit * (factor * LOG2E))
        largest = tl.max(scaled, AXIS)
        # An anchor without negatives in this tile: -inf - (-inf) would be NaN.
        finite = tl.where(largest == float("-inf"), 0.0, largest)
        e = tl.exp2(scaled - tl.expand_dims(finite, AXIS))
    if HARDEST_ONLY:
        if SECOND == 1:
            e2 = e * s
        # -inf marks pairs that are not negatives.
        below, not_above = compare_with_threshold(tl.where(logit == float("-inf"), -4.0, s), threshold)
        above_count, count_here = count_hardest(below, not_above, AXIS)
        above, total = tl.sum(tl.where(not_above, 0.0, e), AXIS), tl.sum(tl.where(below, 0.0, e), AXIS)
        above2, total2 = above, total
        if SECOND > 0:
            above2, total2 = tl.sum(tl.where(not_above, 0.0, e2), AXIS), tl.sum(tl.where(below, 0.0, e2), AXIS)
        if CONSTANT_SHIFT:
            largest = total
        store_hardest(
            here, planes_stride, inside, above, total, above_count, count_here, above2, total2, largest,
            CONSTANT_SHIFT=CONSTANT_SHIFT, SECOND=SECOND,
        )  # fmt: skip
    else:
        total = tl.sum(e, AXIS)
        second = total
        if SECOND == 1:
            second = tl.sum(e * s, AXIS)
        if SECOND == 2:
            second = tl.sum(e2, AXIS)
        tl.store(here, total, inside)
        if SECOND > 0:
            tl.store(here + planes_stride, second, inside)
        if not CONSTANT_SHIFT:
            tl.store(here + 2 * planes_stride, largest, inside)


@triton.jit
def sum_tiles_kernel(
    z, p, q, r, z_id, p_id, factors, thresholds, row_parts, column_parts,
    row_start, row_end, column_start, column_end, period, times, times2, low, span, curvature, shift, shift2,
    COLUMNS_ARE_ANCHORS: tl.constexpr, TRIANGLE: tl.constexpr, CONSTANT_SHIFT: tl.constexpr, TEMPERATURE: tl.constexpr,
    DETACH: tl.constexpr, SECOND: tl.constexpr, HARDEST_ONLY: tl.constexpr, CEILING: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, WIDTH: tl.constexpr, GUIDE_WIDTH: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
    FULL_TILES: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Sum each tile over its columns and, if columns are anchors, over its rows: see `_sum_and_store`.

    `row_parts` is (planes, tiles across, rows), `column_parts` (planes, tiles down, columns); for a TRIANGLE they are the same.
    """
    i, j = tl.program_id(0), tl.program_id(1)
    if TRIANGLE and j < i:
        return
    rows, columns, row_inside, column_inside, any_excluded = tile_of_program(
        row_start, row_end, column_start, column_end, period, ROWS, COLUMNS, FULL_TILES
    )
    # Both products first: what follows from one would take registers that the other needs.
    row, column = row_start + i * ROWS, column_start + j * COLUMNS
    if CEILING == 2:
        s, limited = two_tile_similarities(z, p, q, r, row, column, ROWS, COLUMNS, WIDTH, GUIDE_WIDTH, DEPTH, PRECISION)
    else:
        s = tile_similarities(z, p, row, column, ROWS, COLUMNS, WIDTH, DEPTH, PRECISION)
        limited = s
    s = replace_excluded(
        s, 0.0, z_id, p_id, rows, columns, row_inside, column_inside, any_excluded, FULL_TILES
    )  # fmt: skip
    base, _ = over_temperature(s, low, span, curvature, TEMPERATURE, DETACH, FAST, z.dtype == tl.bfloat16)
    base = replace_excluded(
        base, float("-inf"), z_id, p_id, rows, columns, row_inside, column_inside, any_excluded, FULL_TILES
    )  # fmt: skip
    e, e2 = base, base
    if CONSTANT_SHIFT:  # one exponential for both axes
        e = tl.exp2(base * times - shift)
        if SECOND == 2:
            e2 = tl.exp2(base * times2 - shift2)
    row_count, column_count = row_end - row_start, column_end - column_start
    row_stride, column_stride = (
        row_count.to(tl.int64) * tl.num_programs(1),
        column_count.to(tl.int64) * tl.num_programs(0),
    )
    factor, threshold = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
    if not CONSTANT_SHIFT:
        factor = tl.load(factors + rows, row_inside, 0.0)
    if HARDEST_ONLY or CEILING:
        threshold = tl.load(thresholds + rows, row_inside, 0.0)
    _sum_and_store(
        s, limited, base, e, e2, factor[:, None], threshold[:, None], row_parts, j, rows - row_start, row_count, row_inside,
        row_stride, 1, CONSTANT_SHIFT, SECOND, HARDEST_ONLY, CEILING,
    )  # fmt: skip
    if COLUMNS_ARE_ANCHORS:
        if not TRIANGLE or j > i:  # a tile on the diagonal is its own transpose
            factor, threshold = tl.zeros((COLUMNS,), tl.float32), tl.zeros((COLUMNS,), tl.float32)
            if not CONSTANT_SHIFT:
                factor = tl.load(factors + columns, column_inside, 0.0)
            if HARDEST_ONLY or CEILING:
                threshold = tl.load(thresholds + columns, column_inside, 0.0)
            _sum_and_store(
                s, limited, base, e, e2, factor[None, :], threshold[None, :], column_parts, i, columns - column_start,
                column_count, column_inside, column_stride, 0, CONSTANT_SHIFT, SECOND, HARDEST_ONLY, CEILING,
            )  # fmt: skip


@triton.jit
def _log_add(largest, total):
    """Return the logarithm, in base 2, of 2^largest · total; -inf for 0."""
    return tl.where(total != 0, largest + tl.log2(total), float("-inf"))


@triton.jit
def merge_kernel(
    parts, lse, second, start, count, tiles, shift, shift2,
    FIRST: tl.constexpr, CONSTANT_SHIFT: tl.constexpr, SECOND: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Merge the sums of a block's tiles into the results of its anchors, which start at `start`.

    `lse` = log Σ e^φ. `second`: 1 / Σ e^{φ - shift} (SECOND 0, constant shift), the expectation (1) or log Σ e^{φ2} (2).
    FIRST overwrites the results; otherwise they hold the results of earlier blocks. STEP tiles are read at a time.
    """
    index = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = index < count
    here, plane = parts + index[None, :], tiles * count
    old_total, old_second = tl.full((ROWS,), float("-inf"), tl.float32), tl.zeros((ROWS,), tl.float32)
    if not FIRST:
        old_total = tl.load(lse + start + index, inside, 0.0) * LOG2E
        if SECOND > 0:
            old_second = tl.load(second + start + index, inside, 0.0)
    largest = tl.full((ROWS,), 0.0, tl.float32) + shift
    if not CONSTANT_SHIFT:
        largest = old_total
        for first in range(0, tiles, STEP):
            t = first + tl.arange(0, STEP)[:, None]
            maxima = tl.load(here + 2 * plane + t * count, (t < tiles) & inside[None, :], float("-inf"))
            largest = tl.maximum(largest, tl.max(maxima, 0))
        largest = tl.where(largest == float("-inf"), 0.0, largest)
    total = tl.exp2(old_total - largest)
    extra = total * old_second  # SECOND 1: Σ s e^φ
    if SECOND == 2:
        extra = tl.where(old_total == float("-inf"), 0.0, tl.exp2(old_second * LOG2E - shift2))
    for first in range(0, tiles, STEP):
        t = first + tl.arange(0, STEP)[:, None]
        mask = (t < tiles) & inside[None, :]
        sums = tl.load(here + t * count, mask, 0.0)
        if not CONSTANT_SHIFT:
            weight = tl.exp2(tl.load(here + 2 * plane + t * count, mask, float("-inf")) - largest[None, :])
            sums *= weight
        total += tl.sum(sums, 0)
        if SECOND > 0:
            seconds = tl.load(here + plane + t * count, mask, 0.0)
            if not CONSTANT_SHIFT:
                seconds *= weight
            extra += tl.sum(seconds, 0)
    log_total = _log_add(largest, total)
    tl.store(lse + start + index, log_total * LN2, inside)
    if SECOND == 0 and CONSTANT_SHIFT:
        tl.store(second + start + index, tl.where(total != 0, 1.0 / total, 0.0), inside)
    if SECOND == 1:
        tl.store(second + start + index, tl.where(total != 0, extra / total, 0.0), inside)
    if SECOND == 2:
        tl.store(second + start + index, _log_add(shift2 + total * 0.0, extra) * LN2, inside)


@triton.jit
def weigh_tiles_kernel(
    z, p, q, r, z_id, p_id, factors, thresholds, tie_weights, lse, gradient, gradient2, out,
    row_start, row_end, column_start, column_end, period, times, times2, low, span, curvature, shift, shift2,
    COLUMNS_ARE_ANCHORS: tl.constexpr, TRIANGLE: tl.constexpr, CONSTANT_SHIFT: tl.constexpr, TEMPERATURE: tl.constexpr,
    DETACH: tl.constexpr, SECOND: tl.constexpr, FIXED_WEIGHTS: tl.constexpr, HARDEST_ONLY: tl.constexpr,
    CEILING: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, GUIDE_WIDTH: tl.constexpr,
    DEPTH: tl.constexpr, PRECISION: tl.constexpr, FULL_TILES: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Write ∂L/∂s of a block to `out` (rows, columns), for its rows' losses plus, if columns are anchors, its columns' losses."""
    i, j = tl.program_id(0), tl.program_id(1)
    if TRIANGLE and j < i:
        return
    rows, columns, row_inside, column_inside, any_excluded = tile_of_program(
        row_start, row_end, column_start, column_end, period, ROWS, COLUMNS, FULL_TILES
    )
    row, column = row_start + i * ROWS, column_start + j * COLUMNS
    if CEILING == 2:
        s, limited = two_tile_similarities(z, p, q, r, row, column, ROWS, COLUMNS, WIDTH, GUIDE_WIDTH, DEPTH, PRECISION)
    else:
        s = tile_similarities(z, p, row, column, ROWS, COLUMNS, WIDTH, DEPTH, PRECISION)
        limited = s
    base, slope = over_temperature(s, low, span, curvature, TEMPERATURE, DETACH, FAST, z.dtype == tl.bfloat16)
    a, b, factor, total, threshold, tie_weight = load_anchors(
        factors, thresholds, tie_weights, lse, gradient, gradient2, rows, row_inside,
        CONSTANT_SHIFT, SECOND, HARDEST_ONLY, CEILING, FULL_TILES,
    )  # fmt: skip
    none = tl.zeros((COLUMNS,), tl.float32)
    a2, b2, factor2, total2, threshold2, tie_weight2 = none, none, none, none, none, none
    if COLUMNS_ARE_ANCHORS:
        a2, b2, factor2, total2, threshold2, tie_weight2 = load_anchors(
            factors, thresholds, tie_weights, lse, gradient, gradient2, columns, column_inside,
            CONSTANT_SHIFT, SECOND, HARDEST_ONLY, CEILING, FULL_TILES,
        )  # fmt: skip
    weight = similarity_weights(
        s, limited, base, slope,
        a[:, None], b[:, None], factor[:, None], total[:, None], threshold[:, None], tie_weight[:, None],
        a2[None, :], b2[None, :], factor2[None, :], total2[None, :], threshold2[None, :], tie_weight2[None, :],
        times, times2, shift, shift2,
        True, COLUMNS_ARE_ANCHORS, CONSTANT_SHIFT, SECOND, FIXED_WEIGHTS, HARDEST_ONLY, CEILING,
    )  # fmt: skip
    if CONSTANT_SHIFT and SECOND == 0:
        weight *= times * LN2
    weight = replace_excluded(
        weight, 0.0, z_id, p_id, rows, columns, row_inside, column_inside, any_excluded, FULL_TILES
    ).to(out.dtype)  # fmt: skip
    out.store([i * ROWS, j * COLUMNS], weight)
    if TRIANGLE:
        if j > i:
            out.store([j * COLUMNS, i * ROWS], tl.trans(weight))


@triton.jit
def sigmoid_tiles_kernel(
    z, p, z_id, p_id, scale_and_bias, parts, out, row_start, row_end, column_start, column_end, period, low, span, curvature,
    COLUMNS_ARE_ANCHORS: tl.constexpr, TRIANGLE: tl.constexpr, TEMPERATURE: tl.constexpr, DETACH: tl.constexpr,
    WEIGHTS: tl.constexpr, LEARNED: tl.constexpr, NUMBERED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr, FULL_TILES: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Sum log(1 + e^x) over each tile, x = scale · s/τ(s) + bias: (planes, tiles).

    If scale or bias is LEARNED, σ(x) · s/τ(s) and σ(x), their gradients, are summed too. With WEIGHTS, the derivative of the
    block's sum with respect to each similarity is written to `out` in the same pass: unlike a softmax's derivative, it does
    not depend on sums over the rest of the matrix. If columns are anchors, each similarity counts twice. NUMBERED: the ids of
    row and column r are r % period.
    """
    i, j = tl.program_id(0), tl.program_id(1)
    here, plane = parts + i * tl.num_programs(1) + j, tl.num_programs(0) * tl.num_programs(1)
    if TRIANGLE and j < i:  # its transpose is counted instead
        tl.store(here, 0.0)
        if LEARNED:
            tl.store(here + plane, 0.0)
            tl.store(here + 2 * plane, 0.0)
        return
    rows, columns, row_inside, column_inside, _ = tile_of_program(
        row_start, row_end, column_start, column_end, period, ROWS, COLUMNS, FULL_TILES
    )
    # Ids are compared in all tiles: a branch would cost registers, and therefore speed, in every tile.
    if NUMBERED and FULL_TILES:
        excluded = excluded_by_number(row_start + i * ROWS, column_start + j * COLUMNS, period, ROWS, COLUMNS)
    else:
        excluded = excluded_in_tile(z_id, p_id, rows, columns, row_inside, column_inside, FULL_TILES)
    times = 1.0
    if COLUMNS_ARE_ANCHORS:
        times = 2.0
    scale, bias = tl.load(scale_and_bias), tl.load(scale_and_bias + 1)
    s = tile_similarities(
        z, p, row_start + i * ROWS, column_start + j * COLUMNS, ROWS, COLUMNS, WIDTH, DEPTH, PRECISION
    )
    base, slope = over_temperature(s, low, span, curvature, TEMPERATURE, DETACH, FAST, z.dtype == tl.bfloat16)
    # Base 2 throughout. -inf for excluded pairs makes their loss and their weight exactly 0.
    x = tl.where(excluded, float("-inf"), base * (scale * LOG2E) + bias * LOG2E)
    value, sigmoid = softplus_and_sigmoid(x, z.dtype == tl.bfloat16, FAST)
    count = times
    if TRIANGLE:
        count = tl.where(j > i, 2.0, 1.0)  # a tile on the diagonal holds both similarities of a pair
    tl.store(here, tl.sum(value) * (count * LN2))
    if LEARNED:
        tl.store(here + plane, tl.sum(sigmoid * base) * count)
        tl.store(here + 2 * plane, tl.sum(sigmoid) * count)
    if WEIGHTS:
        weight = (sigmoid * slope * (scale * times)).to(out.dtype)
        out.store([i * ROWS, j * COLUMNS], weight)
        if TRIANGLE:
            if j > i:
                out.store([j * COLUMNS, i * ROWS], tl.trans(weight))
