# mypy: ignore-errors
"""Triton kernels of `thresholds`, which documents what they are for. Arguments are those of `kernels`.

low, high        of each row: an interval of similarities
unresolved       of each row: whether it is still searched for; programs without such a row return at once
DEPTH            coordinates of a product that are summed at a time
"""

import triton
import triton.language as tl

from contrapose.reduce.kernels import BAND, excluded_pairs, program_rows, tile_similarities


@triton.jit
def count_kernel(
    z, p, z_id, p_id, low, step, unresolved, out, n, m, d, columns_per_program,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
    FULL_TILES: tl.constexpr,
):  # fmt: skip
    """Count each row's negatives at or above `low` + k · `step` for k = 0…7: (splits, n, 8).

    Eight counters of 8 bits are one integer, to which each negative adds 1 at its own place: one sum serves eight intervals.
    A tile must have fewer than 256 columns.
    """
    first, rows, inside, row_ids, split = program_rows(z_id, n, ROWS)
    if tl.max(tl.load(unresolved + rows, inside, 0).to(tl.int32), 0) == 0:
        return
    row_low, row_step = tl.load(low + rows, inside, 0.0)[:, None], tl.load(step + rows, inside, 1.0)[:, None]
    scale = 1.0 / row_step
    zero = tl.zeros((ROWS,), tl.int32)  # eight separate registers: Triton has no indexing into a tensor
    c0, c1, c2, c3, c4, c5, c6, c7 = zero, zero, zero, zero, zero, zero, zero, zero
    for start in range(split * columns_per_program, min(m, (split + 1) * columns_per_program), COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        s = tile_similarities(z, p, first, start, ROWS, COLUMNS, WIDTH, DEPTH, PRECISION)
        # Number of thresholds reached, 0 to 8
        reached = tl.minimum(tl.maximum((s - row_low) * scale + 1.0, 0.0), 8.0).to(tl.int32)
        reached = tl.where(excluded_pairs(row_ids, p_id, columns, m, FULL_TILES), 0, reached)
        one = tl.full((ROWS, COLUMNS), 1, tl.int64)
        packed = tl.sum(tl.where(reached > 0, one << (8 * (reached - 1)).to(tl.int64), 0), 1)
        c0, c1 = c0 + (packed & 255).to(tl.int32), c1 + ((packed >> 8) & 255).to(tl.int32)
        c2, c3 = c2 + ((packed >> 16) & 255).to(tl.int32), c3 + ((packed >> 24) & 255).to(tl.int32)
        c4, c5 = c4 + ((packed >> 32) & 255).to(tl.int32), c5 + ((packed >> 40) & 255).to(tl.int32)
        c6, c7 = c6 + ((packed >> 48) & 255).to(tl.int32), c7 + ((packed >> 56) & 255).to(tl.int32)
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
def _places(wanted, COLUMNS: tl.constexpr, FAST: tl.constexpr):
    """Return the number of wanted entries to the left of each entry, and of all in each row."""
    if FAST:  # one bit per column: counting the bits to the left is cheaper than a cumulative sum
        columns = tl.arange(0, COLUMNS).to(tl.int64)[None, :]
        one = tl.full((wanted.shape[0], COLUMNS), 1, tl.int64)
        bits = tl.sum(tl.where(wanted, one << columns, 0), 1)
        left = bits[:, None] & ((one << columns) - 1)
        before = tl.inline_asm_elementwise("popc.b64 $0, $1;", "=r,l", [left], tl.int32, True, 1)
        return before, tl.inline_asm_elementwise("popc.b64 $0, $1;", "=r,l", [bits], tl.int32, True, 1)
    ones = wanted.to(tl.int32)
    return tl.cumsum(ones, 1) - ones, tl.sum(ones, 1)


@triton.jit
def collect_kernel(
    z, p, z_id, p_id, low, high, values, collected, above, n, m, d, columns_per_program,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
    FULL_TILES: tl.constexpr, CAPACITY: tl.constexpr, FAST: tl.constexpr,
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
        s = tile_similarities(z, p, first, start, ROWS, COLUMNS, WIDTH, DEPTH, PRECISION)
        s = tl.where(excluded_pairs(row_ids, p_id, columns, m, FULL_TILES), -3.0, s)
        wanted = (s >= row_low) & (s < row_high)
        total += tl.sum(tl.where(s >= row_high, 1, 0), 1)
        before, in_row = _places(wanted, COLUMNS, FAST)
        place = before + count[:, None]
        count += in_row
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
