# mypy: ignore-errors
"""Triton kernels of `thresholds`, which documents what they are for. Arguments are those of `kernels`.

low, high        of each row: an interval of similarities
unresolved       of each row: whether it is still searched for; programs without such a row return at once
DEPTH            coordinates of a product that are summed at a time
"""

import triton
import triton.language as tl

from contrapose.reduce.kernels import BAND, excluded_pairs, may_share_ids, program_rows, tile_similarities


@triton.jit
def _sum_of_counter(packed, NUMBER: tl.constexpr):
    """Return the sums over each row of one of the counters that `packed` (ROWS, COLUMNS) holds."""
    return tl.sum(((packed >> (7 * NUMBER)) & 127).to(tl.int32), 1)


@triton.jit
def count_kernel(
    z, p, z_id, p_id, low, step, unresolved, out, n, m, d, columns_per_program, period, id_shift,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
    FULL_TILES: tl.constexpr,
):  # fmt: skip
    """Count each row's negatives at or above `low` + k · `step` for k = 0…7: (splits, n, 8).

    Nine counters of 7 bits are one integer, to which each negative adds 1 at its own place. Each place of a tile has such an
    integer; they are added up before a counter can overflow.
    """
    first, rows, inside, row_ids, split = program_rows(z_id, n, ROWS)
    if tl.max(tl.load(unresolved + rows, inside, 0).to(tl.int32), 0) == 0:
        return
    row_low, row_step = tl.load(low + rows, inside, 0.0)[:, None], tl.load(step + rows, inside, 1.0)[:, None]
    scale = 1.0 / row_step
    zero = tl.zeros((ROWS,), tl.int32)  # eight separate registers: Triton has no indexing into a tensor
    c0, c1, c2, c3, c4, c5, c6, c7 = zero, zero, zero, zero, zero, zero, zero, zero
    one = tl.full((ROWS, COLUMNS), 1, tl.int64)
    end = min(m, (split + 1) * columns_per_program)
    for begin in range(split * columns_per_program, end, 127 * COLUMNS):
        packed = tl.zeros((ROWS, COLUMNS), tl.int64)
        for start in range(begin, min(end, begin + 127 * COLUMNS), COLUMNS):
            columns = start + tl.arange(0, COLUMNS)
            s = tile_similarities(z, p, first, start, ROWS, COLUMNS, WIDTH, DEPTH, PRECISION)
            # Number of thresholds reached, 0 to 8
            reached = tl.minimum(tl.maximum((s - row_low) * scale + 1.0, 0.0), 8.0).to(tl.int32)
            any_excluded = may_share_ids(first, start + id_shift, period, ROWS, COLUMNS) | (start + COLUMNS > m)
            if any_excluded:
                reached = tl.where(excluded_pairs(row_ids, p_id, columns, m, FULL_TILES), 0, reached)
            packed += one << (7 * reached).to(tl.int64)
        c0, c1 = c0 + _sum_of_counter(packed, 1), c1 + _sum_of_counter(packed, 2)
        c2, c3 = c2 + _sum_of_counter(packed, 3), c3 + _sum_of_counter(packed, 4)
        c4, c5 = c4 + _sum_of_counter(packed, 5), c5 + _sum_of_counter(packed, 6)
        c6, c7 = c6 + _sum_of_counter(packed, 7), c7 + _sum_of_counter(packed, 8)
    counts = out + (split.to(tl.int64) * n + rows) * 8
    at_least = c7  # from the number in each interval to the number above its lower end
    tl.store(counts + 7, at_least, inside)
    at_least += c6
    tl.store(counts + 6, at_least, inside)
    at_least += c5
    tl.store(counts + 5, at_least, inside)
    at_least += c4
    tl.store(counts + 4, at_least, inside)
    at_least += c3
    tl.store(counts + 3, at_least, inside)
    at_least += c2
    tl.store(counts + 2, at_least, inside)
    at_least += c1
    tl.store(counts + 1, at_least, inside)
    tl.store(counts, at_least + c0, inside)


@triton.jit
def collect_kernel(
    z, p, z_id, p_id, low, high, values, collected, above, n, m, d, columns_per_program, period, id_shift,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
    FULL_TILES: tl.constexpr, PARTS: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """Collect each row's negatives between `low` and `high`, and count those at or above `high`: `above` (splits, n).

    Each place of a tile has SLOTS of its own in `values` (n, PARTS, SLOTS, COLUMNS), so that nothing has to be exchanged
    within a tile. `collected` (n, PARTS, COLUMNS) counts negatives even where no slot is left.
    """
    first, rows, inside, row_ids, split = program_rows(z_id, n, ROWS)
    row_low, row_high = tl.load(low + rows, inside, 4.0)[:, None], tl.load(high + rows, inside, 4.0)[:, None]
    place = (rows.to(tl.int64) * PARTS + split)[:, None] * COLUMNS
    lane = tl.arange(0, COLUMNS)[None, :]
    here = values + place * SLOTS + lane
    count, total = tl.zeros((ROWS, COLUMNS), tl.int32), tl.zeros((ROWS, COLUMNS), tl.int32)
    for start in range(split * columns_per_program, min(m, (split + 1) * columns_per_program), COLUMNS):
        s = tile_similarities(z, p, first, start, ROWS, COLUMNS, WIDTH, DEPTH, PRECISION)
        any_excluded = may_share_ids(first, start + id_shift, period, ROWS, COLUMNS) | (start + COLUMNS > m)
        if any_excluded:
            columns = start + tl.arange(0, COLUMNS)
            s = tl.where(excluded_pairs(row_ids, p_id, columns, m, FULL_TILES), -3.0, s)
        total += (s >= row_high).to(tl.int32)
        wanted = (s >= row_low) & (s < row_high)
        tl.store(here + count * COLUMNS, s, wanted & (count < SLOTS))
        count += wanted.to(tl.int32)
    tl.store(collected + place + lane, count, inside[:, None])
    tl.store(above + split * n + rows, tl.sum(total, 1), inside)


@triton.jit
def select_kernel(
    values, collected, rank, low, high, thresholds, tie_weights, n,
    PARTS: tl.constexpr, SLOTS: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Find the `rank`-th largest of each row's collected values, and the weight of ties there: weights sum to `rank`.

    PARTS are the splits of `collect_kernel`.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < n
    place = tl.arange(0, PARTS * SLOTS * COLUMNS)[None, :]
    owner = place // (SLOTS * COLUMNS) * COLUMNS + place % COLUMNS  # of its slot: one lane of one split
    counts = tl.load(collected + rows.to(tl.int64)[:, None] * (PARTS * COLUMNS) + owner, inside[:, None], 0)
    present = place // COLUMNS % SLOTS < counts
    x = tl.load(values + rows.to(tl.int64)[:, None] * (PARTS * SLOTS * COLUMNS) + place, present, -4.0)
    wanted = tl.load(rank + rows, inside, 1)
    lower, upper = tl.load(low + rows, inside, 0.0), tl.load(high + rows, inside, 0.0)
    # At least `wanted` values are at or above `lower`, and fewer at or above `upper`. 22 times halve the widest interval, 2, to
    # less than the band of ties.
    for _ in range(22):
        middle = 0.5 * (lower + upper)
        reached = tl.sum(tl.where(x >= middle[:, None], 1, 0), 1) >= wanted
        lower, upper = tl.where(reached, middle, lower), tl.where(reached, upper, middle)
    threshold = tl.min(tl.where(x >= lower[:, None], x, 4.0), 1)  # the value itself
    above = tl.sum(tl.where(x > (threshold + BAND)[:, None], 1, 0), 1)
    ties = tl.sum(tl.where(x >= (threshold - BAND)[:, None], 1, 0), 1) - above
    weight = (wanted - above).to(tl.float32) / tl.maximum(ties, 1).to(tl.float32)
    tl.store(thresholds + rows, threshold, inside)
    tl.store(tie_weights + rows, tl.minimum(tl.maximum(weight, 0.0), 1.0), inside)
