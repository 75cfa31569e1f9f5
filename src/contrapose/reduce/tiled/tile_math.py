# mypy: ignore-errors
"""Triton functions that the kernels of tiles share: a program's tile, two products of it, and the pairs to leave out."""

import triton
import triton.language as tl

from contrapose.reduce.kernel_math import may_share_ids, tile_similarities


@triton.jit
def two_tile_similarities(
    z, p, q, r, row, column, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, GUIDE_WIDTH: tl.constexpr,
    DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the same tile of z · pᵀ and of q · rᵀ, whose rows have GUIDE_WIDTH coordinates."""
    if WIDTH == GUIDE_WIDTH:  # in one loop, so that the loads of one product run during the other
        s, g = tl.zeros((ROWS, COLUMNS), tl.float32), tl.zeros((ROWS, COLUMNS), tl.float32)
        for k in range(0, WIDTH, DEPTH):
            s = tl.dot(z.load([row, k]), tl.trans(p.load([column, k])), s, input_precision=PRECISION)
            g = tl.dot(q.load([row, k]), tl.trans(r.load([column, k])), g, input_precision=PRECISION)
    else:
        s = tile_similarities(z, p, row, column, ROWS, COLUMNS, WIDTH, DEPTH, PRECISION)
        g = tile_similarities(q, r, row, column, ROWS, COLUMNS, GUIDE_WIDTH, DEPTH, PRECISION)
    return s, g


@triton.jit
def tile_of_program(
    row_start, row_end, column_start, column_end, period,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, FULL_TILES: tl.constexpr,
):  # fmt: skip
    """Return a program's rows and columns, masks of those that exist, and whether its tile may hold excluded pairs."""
    row, column = row_start + tl.program_id(0) * ROWS, column_start + tl.program_id(1) * COLUMNS
    rows, columns = row + tl.arange(0, ROWS), column + tl.arange(0, COLUMNS)
    any_excluded = may_share_ids(row, column, period, ROWS, COLUMNS)
    if not FULL_TILES:
        any_excluded |= (row + ROWS > row_end) | (column + COLUMNS > column_end)
    return rows, columns, rows < row_end, columns < column_end, any_excluded


@triton.jit
def excluded_in_tile(z_id, p_id, rows, columns, row_inside, column_inside, FULL_TILES: tl.constexpr):
    """Return (ROWS, COLUMNS) bool: true where a pair is not a negative."""
    if FULL_TILES:
        return tl.load(z_id + rows)[:, None] == tl.load(p_id + columns)[None, :]
    row_ids, column_ids = tl.load(z_id + rows, row_inside, 0), tl.load(p_id + columns, column_inside, 0)
    return (row_ids[:, None] == column_ids[None, :]) | ~(row_inside[:, None] & column_inside[None, :])


@triton.jit
def excluded_by_number(row, column, period, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return `excluded_in_tile` of a tile from `row` and `column` on, if the ids of row and column r are r % period.

    The period must be at least ROWS + COLUMNS, so that a row's id occurs in at most one column of the tile. No ids are held in
    registers: the ids of 128 columns would take half of a thread's registers.
    """
    ahead = (row - column) % period  # distance from the first column's id to the first row's id
    ahead = tl.where(ahead < 0, ahead + period, ahead)  # Triton's % has the sign of the dividend
    ahead = tl.where(ahead < COLUMNS, ahead, ahead - period)
    return (ahead + tl.arange(0, ROWS))[:, None] == tl.arange(0, COLUMNS)[None, :]


@triton.jit
def replace_excluded(
    x, value, z_id, p_id, rows, columns, row_inside, column_inside, any_excluded, FULL_TILES: tl.constexpr
):
    """Return x (ROWS, COLUMNS) with `value` for each pair that is not a negative."""
    if any_excluded:
        # Selected, not multiplied: an excluded entry may be NaN or inf.
        x = tl.where(excluded_in_tile(z_id, p_id, rows, columns, row_inside, column_inside, FULL_TILES), value, x)
    return x
