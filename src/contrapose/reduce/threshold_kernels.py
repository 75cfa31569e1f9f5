# mypy: ignore-errors
"""Triton kernels of `thresholds`, which documents what they are for. Arguments are those of `kernels`.

low, high        of each row: an interval of similarities
unresolved       of each row: whether it is still searched for; programs without such a row return at once
DEPTH            coordinates of a product that are summed at a time
"""

import triton
import triton.language as tl

from contrapose.reduce.kernels import BAND, excluded_pairs, program_rows


@triton.jit
def _similarities(
    z, p, row, column, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    s = tl.zeros((ROWS, COLUMNS), tl.float32)
    for k in range(0, WIDTH, DEPTH):
        s = tl.dot(z.load([row, k]), tl.trans(p.load([column, k])), s, input_precision=PRECISION)
    return s


@triton.jit
def _packed_counts(s, first_threshold, step, k: tl.constexpr):
    """Count the entries of each row at or above thresholds k and k + 1, in the low and the high 16 bits of one integer.

    One reduction then serves two thresholds. A tile has fewer than 2¹⁶ columns, so that the low half cannot overflow.
    """
    return tl.sum(
        tl.where(s >= first_threshold + k * step, 1, 0) + tl.where(s >= first_threshold + (k + 1) * step, 65536, 0), 1
    )


@triton.jit
def count_kernel(
    z, p, z_id, p_id, low, step, unresolved, out, n, m, d, columns_per_program,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
    FULL_TILES: tl.constexpr,
):  # fmt: skip
    """Count each row's negatives at or above `low` + k · `step` for k = 0…7: (splits, n, 8)."""
    first, rows, inside, row_ids, split = program_rows(z_id, n, ROWS)
    if tl.max(tl.load(unresolved + rows, inside, 0).to(tl.int32), 0) == 0:
        return
    row_low, row_step = tl.load(low + rows, inside, 0.0)[:, None], tl.load(step + rows, inside, 0.0)[:, None]
    zero = tl.zeros((ROWS,), tl.int32)  # eight separate registers: Triton has no indexing into a tensor
    low0, low1, low2, low3, high0, high1, high2, high3 = zero, zero, zero, zero, zero, zero, zero, zero
    for start in range(split * columns_per_program, min(m, (split + 1) * columns_per_program), COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        s = _similarities(z, p, first, start, ROWS, COLUMNS, WIDTH, DEPTH, PRECISION)
        s = tl.where(excluded_pairs(row_ids, p_id, columns, m, FULL_TILES), -3.0, s)  # below every threshold
        c0, c1 = _packed_counts(s, row_low, row_step, 0), _packed_counts(s, row_low, row_step, 2)
        c2, c3 = _packed_counts(s, row_low, row_step, 4), _packed_counts(s, row_low, row_step, 6)
        low0, low1, low2, low3 = low0 + (c0 & 65535), low1 + (c1 & 65535), low2 + (c2 & 65535), low3 + (c3 & 65535)
        high0, high1, high2, high3 = high0 + (c0 >> 16), high1 + (c1 >> 16), high2 + (c2 >> 16), high3 + (c3 >> 16)
    counts = out + (split.to(tl.int64) * n + rows) * 8
    tl.store(counts, low0, inside)
    tl.store(counts + 1, high0, inside)
    tl.store(counts + 2, low1, inside)
    tl.store(counts + 3, high1, inside)
    tl.store(counts + 4, low2, inside)
    tl.store(counts + 5, high2, inside)
    tl.store(counts + 6, low3, inside)
    tl.store(counts + 7, high3, inside)


@triton.jit
def collect_kernel(
    z, p, z_id, p_id, low, high, values, collected, above, n, m, d, columns_per_program,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
    FULL_TILES: tl.constexpr, CAPACITY: tl.constexpr,
):  # fmt: skip
    """Collect each row's negatives between `low` and `high`, (n, CAPACITY), and count those at or above `high`, (n,).

    `collected` (n,) counts them even where there is no room left. A program takes all columns of its rows.
    """
    first, rows, inside, row_ids, _ = program_rows(z_id, n, ROWS)
    row_low, row_high = tl.load(low + rows, inside, 4.0)[:, None], tl.load(high + rows, inside, 4.0)[:, None]
    count, total = tl.zeros((ROWS,), tl.int32), tl.zeros((ROWS,), tl.int32)
    here = values + rows.to(tl.int64)[:, None] * CAPACITY
    for start in range(0, m, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        s = _similarities(z, p, first, start, ROWS, COLUMNS, WIDTH, DEPTH, PRECISION)
        s = tl.where(excluded_pairs(row_ids, p_id, columns, m, FULL_TILES), -3.0, s)
        wanted = (s >= row_low) & (s < row_high)
        total += tl.sum(tl.where(s >= row_high, 1, 0), 1)
        place = tl.cumsum(wanted.to(tl.int32), 1) + (count - 1)[:, None]
        count += tl.sum(wanted.to(tl.int32), 1)
        tl.store(here + place, s, wanted & (place < CAPACITY))
    tl.store(collected + rows, count, inside)
    tl.store(above + rows, total, inside)


@triton.jit
def select_kernel(
    values, collected, rank, low, high, thresholds, tie_weights, n, CAPACITY: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """Find the `rank`-th largest of each row's collected values, and the weight of ties there: weights sum to `rank`."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < n
    place = tl.arange(0, CAPACITY)[None, :]
    present = (place < tl.load(collected + rows, inside, 0)[:, None]) & inside[:, None]
    x = tl.load(values + rows.to(tl.int64)[:, None] * CAPACITY + place, present, -4.0)
    wanted = tl.load(rank + rows, inside, 1)
    lower, upper = tl.load(low + rows, inside, 0.0), tl.load(high + rows, inside, 0.0)
    for _ in range(30):  # at least `wanted` values are at or above `lower`, and fewer at or above `upper`
        middle = 0.5 * (lower + upper)
        reached = tl.sum(tl.where(x >= middle[:, None], 1, 0), 1) >= wanted
        lower, upper = tl.where(reached, middle, lower), tl.where(reached, upper, middle)
    threshold = tl.min(tl.where(x >= lower[:, None], x, 4.0), 1)  # the value itself
    above = tl.sum(tl.where(x > (threshold + BAND)[:, None], 1, 0), 1)
    ties = tl.sum(tl.where(x >= (threshold - BAND)[:, None], 1, 0), 1) - above
    weight = (wanted - above).to(tl.float32) / tl.maximum(ties, 1).to(tl.float32)
    tl.store(thresholds + rows, threshold, inside)
    tl.store(tie_weights + rows, tl.minimum(tl.maximum(weight, 0.0), 1.0), inside)
