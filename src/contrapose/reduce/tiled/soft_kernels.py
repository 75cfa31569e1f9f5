# mypy: ignore-errors
"""Triton kernels of a softmax and a guide's soft targets: a tile of the loss's similarities and the same tile of the guide's.

    q, r                    the guide's row and column operands, (n, GUIDE_WIDTH) and (m, GUIDE_WIDTH)
    sharpness, weight_shift a candidate's weight is w = e^{g · sharpness - weight_shift}, with g the guide's similarity, or,
                            without SOFTMAX, max(g, 0)
    LEARNED, ENTROPY        whether Σ s e^φ and Σ w v, v = log w, are summed too

`tiled.kernels` explains the other arguments. Exponents are in base 2 inside a kernel and natural logarithms outside.
"""

import triton
import triton.language as tl

from contrapose.reduce.kernel_math import LN2, LOG2E, over_temperature
from contrapose.reduce.tiled.tile_math import replace_excluded, tile_of_program, two_tile_similarities


@triton.jit
def _weights(g, sharpness, weight_shift, SOFTMAX: tl.constexpr):
    """Return the weights of a tile's candidates and their logarithms; the logarithm of 0 is given as 0."""
    if SOFTMAX:
        return tl.exp2(g * sharpness - weight_shift), g * sharpness * LN2
    w = tl.where(g < 0, 0.0, g)  # keeps NaN
    return w, tl.where(w > 0, tl.log2(w) * LN2, 0.0)


@triton.jit
def _sum_and_store(
    s, base, e, w, v, factor, parts, tile, index, count, inside, plane,
    AXIS: tl.constexpr, CONSTANT_SHIFT: tl.constexpr, LEARNED: tl.constexpr, ENTROPY: tl.constexpr,
):  # fmt: skip
    """Sum a tile over one axis, and store the sums of some anchors in row `tile` of `parts`; `tiled.soft` names the planes.

    For pairs that are not negatives `w` is 0, and `e` is 0 or, without a constant shift, -inf and not exponentiated yet.
    """
    here = parts + tile.to(tl.int64) * count + index
    if not CONSTANT_SHIFT:
        # Selected: the factor may be 0 outside of the matrix, and 0 · -inf would be NaN.
        scaled = tl.where(e == float("-inf"), e, e * (factor * LOG2E))
        largest = tl.max(scaled, AXIS)
        # An anchor without negatives in this tile: -inf - (-inf) would be NaN.
        finite = tl.where(largest == float("-inf"), 0.0, largest)
        e = tl.exp2(scaled - tl.expand_dims(finite, AXIS))
        tl.store(here + 5 * plane, largest, inside)
    tl.store(here, tl.sum(e, AXIS), inside)
    if LEARNED:
        tl.store(here + plane, tl.sum(e * s, AXIS), inside)
    tl.store(here + 2 * plane, tl.sum(w, AXIS), inside)
    tl.store(here + 3 * plane, tl.sum(w * base, AXIS), inside)
    if ENTROPY:
        tl.store(here + 4 * plane, tl.sum(w * v, AXIS), inside)


@triton.jit
def sum_soft_tiles_kernel(
    z, p, q, r, z_id, p_id, factors, row_parts, column_parts,
    row_start, row_end, column_start, column_end, period, times, low, span, curvature, shift, sharpness, weight_shift,
    COLUMNS_ARE_ANCHORS: tl.constexpr, TRIANGLE: tl.constexpr, CONSTANT_SHIFT: tl.constexpr, TEMPERATURE: tl.constexpr,
    DETACH: tl.constexpr, SOFTMAX: tl.constexpr, LEARNED: tl.constexpr, ENTROPY: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, WIDTH: tl.constexpr, GUIDE_WIDTH: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
    FULL_TILES: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Sum each tile over its columns and, if columns are anchors, over its rows.

    `row_parts` is (planes, tiles across, rows), `column_parts` (planes, tiles down, columns); for a TRIANGLE they are the same.
    """
    i, j = tl.program_id(0), tl.program_id(1)
    if TRIANGLE and j < i:
        return
    rows, columns, row_inside, column_inside, any_excluded = tile_of_program(
        row_start, row_end, column_start, column_end, period, ROWS, COLUMNS, FULL_TILES
    )
    row, column = row_start + i * ROWS, column_start + j * COLUMNS
    # Both products first: what follows from one would take registers that the other needs.
    s, g = two_tile_similarities(z, p, q, r, row, column, ROWS, COLUMNS, WIDTH, GUIDE_WIDTH, DEPTH, PRECISION)
    s = replace_excluded(
        s, 0.0, z_id, p_id, rows, columns, row_inside, column_inside, any_excluded, FULL_TILES
    )  # fmt: skip
    base, _ = over_temperature(s, low, span, curvature, TEMPERATURE, DETACH, FAST, z.dtype == tl.bfloat16)
    if CONSTANT_SHIFT:  # one exponential for both axes
        e = replace_excluded(
            tl.exp2(base * times - shift), 0.0, z_id, p_id, rows, columns, row_inside, column_inside, any_excluded, FULL_TILES
        )  # fmt: skip
    else:
        e = replace_excluded(
            base, float("-inf"), z_id, p_id, rows, columns, row_inside, column_inside, any_excluded, FULL_TILES
        )  # fmt: skip
    w, v = _weights(g, sharpness, weight_shift, SOFTMAX)
    w = replace_excluded(
        w, 0.0, z_id, p_id, rows, columns, row_inside, column_inside, any_excluded, FULL_TILES
    )  # fmt: skip
    row_count, column_count = row_end - row_start, column_end - column_start
    factor = tl.zeros((ROWS,), tl.float32)
    if not CONSTANT_SHIFT:
        factor = tl.load(factors + rows, row_inside, 0.0)
    _sum_and_store(
        s, base, e, w, v, factor[:, None], row_parts, j, rows - row_start, row_count, row_inside,
        row_count.to(tl.int64) * tl.num_programs(1), 1, CONSTANT_SHIFT, LEARNED, ENTROPY,
    )  # fmt: skip
    if COLUMNS_ARE_ANCHORS:
        if not TRIANGLE or j > i:  # a tile on the diagonal is its own transpose
            factor = tl.zeros((COLUMNS,), tl.float32)
            if not CONSTANT_SHIFT:
                factor = tl.load(factors + columns, column_inside, 0.0)
            _sum_and_store(
                s, base, e, w, v, factor[None, :], column_parts, i, columns - column_start, column_count, column_inside,
                column_count.to(tl.int64) * tl.num_programs(0), 0, CONSTANT_SHIFT, LEARNED, ENTROPY,
            )  # fmt: skip


@triton.jit
def _load_gradients(factors, lse, gradient, gradient2, index, inside, CONSTANT_SHIFT: tl.constexpr):
    """Load some anchors' scaled gradients a and b, factors and log-sum-exps · log2 e; a constant shift needs only a and b."""
    a, b = tl.load(gradient + index, inside, 0.0), tl.load(gradient2 + index, inside, 0.0)
    factor, total = a, a
    if not CONSTANT_SHIFT:
        factor, total = tl.load(factors + index, inside, 0.0), tl.load(lse + index, inside, 0.0) * LOG2E
    return a, b, factor, total


@triton.jit
def weigh_soft_tiles_kernel(
    z, p, q, r, z_id, p_id, factors, lse, gradient, gradient2, out,
    row_start, row_end, column_start, column_end, period, times, low, span, curvature, shift, sharpness, weight_shift,
    COLUMNS_ARE_ANCHORS: tl.constexpr, TRIANGLE: tl.constexpr, CONSTANT_SHIFT: tl.constexpr, TEMPERATURE: tl.constexpr,
    DETACH: tl.constexpr, SOFTMAX: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    GUIDE_WIDTH: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr, FULL_TILES: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Write ∂L/∂s of a block to `out` (rows, columns), for its rows' losses plus, if columns are anchors, its columns' losses.

    It is (s / τ(s))' (a e^{φ - shift} + b w), with a and b of the anchor; without a constant shift, e^{φ - lse} takes the place
    of e^{φ - shift}.
    """
    i, j = tl.program_id(0), tl.program_id(1)
    if TRIANGLE and j < i:
        return
    rows, columns, row_inside, column_inside, any_excluded = tile_of_program(
        row_start, row_end, column_start, column_end, period, ROWS, COLUMNS, FULL_TILES
    )
    row, column = row_start + i * ROWS, column_start + j * COLUMNS
    s, g = two_tile_similarities(z, p, q, r, row, column, ROWS, COLUMNS, WIDTH, GUIDE_WIDTH, DEPTH, PRECISION)
    base, slope = over_temperature(s, low, span, curvature, TEMPERATURE, DETACH, FAST, z.dtype == tl.bfloat16)
    w, _ = _weights(g, sharpness, weight_shift, SOFTMAX)
    a, b, factor, total = _load_gradients(factors, lse, gradient, gradient2, rows, row_inside, CONSTANT_SHIFT)
    a, b, factor, total = a[:, None], b[:, None], factor[:, None], total[:, None]
    if COLUMNS_ARE_ANCHORS:
        a2, b2, factor2, total2 = _load_gradients(
            factors, lse, gradient, gradient2, columns, column_inside, CONSTANT_SHIFT
        )
        b += b2[None, :]
    if CONSTANT_SHIFT:  # φ(s_ij) = φ(s_ji): one exponential serves both terms, only the gradients differ
        if COLUMNS_ARE_ANCHORS:
            a += a2[None, :]
        weight = a * tl.exp2(base * times - shift)
    else:
        weight = a * tl.exp2(base * (factor * LOG2E) - total)
        if COLUMNS_ARE_ANCHORS:
            weight += a2[None, :] * tl.exp2(base * (factor2[None, :] * LOG2E) - total2[None, :])
    weight = slope * (weight + b * w)
    weight = replace_excluded(
        weight, 0.0, z_id, p_id, rows, columns, row_inside, column_inside, any_excluded, FULL_TILES
    ).to(out.dtype)  # fmt: skip
    out.store([i * ROWS, j * COLUMNS], weight)
    if TRIANGLE:
        if j > i:
            out.store([j * COLUMNS, i * ROWS], tl.trans(weight))
