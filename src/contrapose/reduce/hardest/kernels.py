# mypy: ignore-errors
"""Triton kernels of `thresholds`, which explains the algorithm. They share the arguments of `fused.kernels` and these:

low, high        for each row: an interval of similarities
unresolved       for each row: whether its threshold is still unknown; programs without such a row return at once
x                a program's first DEPTH coordinates of its rows: all of them where WIDTH is DEPTH
DEPTH            coordinates of a product that are summed at a time
"""

import triton
import triton.language as tl

from contrapose.reduce.kernel_math import BAND, excluded_pairs, may_share_ids, program_rows, tile_similarities

LOWEST = tl.constexpr(-1.01)  # products of rounded unit vectors may exceed ±1 a little
HIGHEST = tl.constexpr(1.01)


@triton.jit
def _similarities(
    x, z, p, row, column, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Return a tile of similarities; narrow rows are not loaded again for each tile."""
    if WIDTH == DEPTH:
        return tl.dot(x, tl.trans(p.load([column, 0])), input_precision=PRECISION)
    return tile_similarities(z, p, row, column, ROWS, COLUMNS, WIDTH, DEPTH, PRECISION)


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

    Nine 7-bit counters are packed in one integer, and each negative adds 1 to one of the counters. Each position of a tile has
    its own integer; the integers are summed before a counter can overflow.
    """
    first, rows, inside, row_ids, split = program_rows(z_id, n, ROWS)
    if tl.max(tl.load(unresolved + rows, inside, 0).to(tl.int32), 0) == 0:
        return
    row_low, row_step = tl.load(low + rows, inside, 0.0)[:, None], tl.load(step + rows, inside, 1.0)[:, None]
    scale = 1.0 / row_step
    x = z.load([first, 0])
    zero = tl.zeros((ROWS,), tl.int32)  # eight separate registers: Triton has no indexing into a tensor
    c0, c1, c2, c3, c4, c5, c6, c7 = zero, zero, zero, zero, zero, zero, zero, zero
    one = tl.full((ROWS, COLUMNS), 1, tl.int64)
    end = min(m, (split + 1) * columns_per_program)
    for begin in range(split * columns_per_program, end, 127 * COLUMNS):
        packed = tl.zeros((ROWS, COLUMNS), tl.int64)
        for start in range(begin, min(end, begin + 127 * COLUMNS), COLUMNS):
            columns = start + tl.arange(0, COLUMNS)
            s = _similarities(x, z, p, first, start, ROWS, COLUMNS, WIDTH, DEPTH, PRECISION)
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
def _between(start, end, at_start, at_end, wanted, step):
    """Return where to look for the `wanted`-th largest value: `at_start` values are at or above `start`, `at_end` above `end`.

    In a short interval, values are nearly evenly spaced, and interpolation takes fewer steps than halving. Every third step
    halves the interval anyway, in case the values are not evenly spaced.
    """
    share = (at_start - wanted).to(tl.float32) / tl.maximum(at_start - at_end, 1).to(tl.float32)
    share = tl.where(step % 3 == 2, 0.5, tl.minimum(tl.maximum(share, 0.02), 0.98))
    return start + share * (end - start)


@triton.jit
def _count_two(x, low, high):
    """Return how many of fewer than 2¹⁶ values are at or above `low`, and how many are at or above `high`."""
    count = tl.sum((x >= low).to(tl.int32) + tl.where(x >= high, 1 << 16, 0), 0)  # one sum for both
    return count & 0xFFFF, (count >> 16) & 0xFFFF


@triton.jit
def _ends(wanted, a, b, at_a, at_b, most):
    """Return the interval that holds the `wanted`-th largest value, of those with ends a and b, and the numbers at its ends."""
    start = tl.where(at_b >= wanted, b, tl.where(at_a >= wanted, a, LOWEST))
    end = tl.where(at_a < wanted, a, tl.where(at_b < wanted, b, HIGHEST))
    at_start = tl.where(at_b >= wanted, at_b, tl.where(at_a >= wanted, at_a, most))
    return start, end, at_start, tl.where(at_a < wanted, at_a, tl.where(at_b < wanted, at_b, 0))


@triton.jit
def _sampled(similarities, column_id, row, row_id, m, SIZE: tl.constexpr, STRIDE: tl.constexpr):
    """Return a row's similarities to every STRIDE-th column, -4 for those that are not negatives."""
    columns = tl.arange(0, SIZE // STRIDE) * STRIDE
    x = tl.load(similarities + row.to(tl.int64) * m + columns, columns < m, -4.0).to(tl.float32)
    return tl.where(tl.load(column_id + columns, columns < m, -2) == row_id, -4.0, x)


@triton.jit
def interval_kernel(
    similarities, row_id, column_id, more, fewer, low, high, m,
    SIZE: tl.constexpr, COARSE: tl.constexpr, NEAR: tl.constexpr,
):  # fmt: skip
    """Find an interval of each row's similarities: `more` of its negatives are above `low`, and `fewer` not below `high`.

    similarities   (n, m) in half precision; m is at most SIZE, a power of two of at most 2¹⁵
    more, fewer    of each row; with fewer than `more` negatives `low` is LOWEST, with `fewer` = 0 `high` is HIGHEST
    COARSE         the search starts with every COARSE-th similarity
    NEAR           number of negatives by which the interval may be too wide on each side, unless it is too wide by under 5e-4
    """
    row = tl.program_id(0)
    own_id, wanted_low, wanted_high = tl.load(row_id + row), tl.load(more + row), tl.load(fewer + row)
    # Among a sixteenth of the similarities, an interval that is wide enough for four standard deviations of their ranks
    few = _sampled(similarities, column_id, row, own_id, m, SIZE, COARSE)
    rank_low, rank_high = wanted_low * (1.0 / COARSE), wanted_high * (1.0 / COARSE)
    rank_low, rank_high = rank_low + 4 * tl.sqrt(rank_low) + 1, rank_high - 4 * tl.sqrt(rank_high) - 1
    a, a_end = tl.full((), LOWEST, tl.float32), tl.full((), HIGHEST, tl.float32)
    b_start, b = a, a_end
    for _ in range(10):
        a_middle, b_middle = 0.5 * (a + a_end), 0.5 * (b_start + b)
        at_a, at_b = _count_two(few, a_middle, b_middle)
        a, a_end = tl.where(at_a >= rank_low, a_middle, a), tl.where(at_a >= rank_low, a_end, a_middle)
        b_start, b = tl.where(at_b >= rank_high, b_middle, b_start), tl.where(at_b >= rank_high, b, b_middle)
    x = _sampled(similarities, column_id, row, own_id, m, SIZE, 1)
    at_a, at_b = _count_two(x, a, b)
    low_start, low_end, at_low_start, at_low_end = _ends(wanted_low, a, b, at_a, at_b, m)
    high_start, high_end, at_high_start, at_high_end = _ends(wanted_high, a, b, at_a, at_b, m)
    unfinished, step = True, 0
    while unfinished:
        low_middle = _between(low_start, low_end, at_low_start, at_low_end, wanted_low + 2, step)
        high_middle = _between(high_start, high_end, at_high_start, at_high_end, wanted_high - 3, step)
        at_low, at_high = _count_two(x, low_middle, high_middle)
        low_reached, high_reached = at_low >= wanted_low, at_high >= wanted_high
        low_start, low_end = tl.where(low_reached, low_middle, low_start), tl.where(low_reached, low_end, low_middle)
        at_low_start, at_low_end = (
            tl.where(low_reached, at_low, at_low_start),
            tl.where(low_reached, at_low_end, at_low),
        )
        high_start = tl.where(high_reached, high_middle, high_start)
        high_end = tl.where(high_reached, high_end, high_middle)
        at_high_start = tl.where(high_reached, at_high, at_high_start)
        at_high_end = tl.where(high_reached, at_high_end, at_high)
        unfinished = ((at_low_start > wanted_low + NEAR) & (low_end - low_start > 5e-4)) | (
            (at_high_end < wanted_high - NEAR) & (high_end - high_start > 5e-4)
        )
        step += 1
    # Similarities were rounded, by at most 2⁻¹¹ of their value. Ties at the threshold are to be within the interval.
    tl.store(low + row, low_start - tl.abs(low_start) * 0.0005 - 2 * BAND)
    tl.store(high + row, high_end + tl.abs(high_end) * 0.0005 + 2 * BAND)


@triton.jit
def _collect(s, low, high, count, values, place, SLOTS: tl.constexpr, COLUMNS: tl.constexpr, FAST: tl.constexpr):
    """Store the similarities between `low` and `high` at `place`, after `count` others, and return the new counts.

    A count is the number of similarities in the interval times 2¹⁶, plus the number above the interval.
    """
    if FAST:
        # tl.store would first exchange the tile between threads through shared memory, which takes longer than everything else.
        return tl.inline_asm_elementwise(
            """{
            .reg .pred reached, inside, stored;
            .reg .u32 slot, more;
            .reg .u64 address;
            setp.ge.f32 reached, $1, $2;
            setp.lt.and.f32 inside, $1, $3, reached;
            setp.lt.and.u32 stored, $4, $7, inside;
            shr.u32 slot, $4, 16;
            mad.lo.u32 slot, slot, $8, $6;
            mad.wide.u32 address, slot, 4, $5;
            @stored st.global.f32 [address], $1;
            selp.u32 more, 0x10000, 1, inside;
            mov.u32 $0, $4;
            @reached add.u32 $0, $0, more;
            }""",
            "=r,f,f,f,r,l,r,r,r", [s, low, high, count, values.to(tl.int64), place, SLOTS << 16, COLUMNS], tl.int32, False, 1,
        )  # fmt: skip
    inside = (s >= low) & (s < high)
    tl.store(values + place + (count >> 16) * COLUMNS, s, inside & (count < SLOTS << 16))
    return count + tl.where(inside, 1 << 16, (s >= high).to(tl.int32))


@triton.jit
def collect_kernel(
    z, p, z_id, p_id, low, high, values, collected, above, n, m, d, columns_per_program, period, id_shift,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
    FULL_TILES: tl.constexpr, PARTS: tl.constexpr, SLOTS: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Collect each row's negatives between `low` and `high`, and count those at or above `high`: `above` (splits, n).

    Each position of a tile has its own SLOTS in `values` (n, PARTS, SLOTS, COLUMNS), so that nothing has to be exchanged
    within a tile. `collected` (n, PARTS, COLUMNS) counts negatives even if no slot is left. Programs take
    tiles in turn: similar columns are often neighbours, as in sorted data, and must not fill the slots of one program.
    """
    first, rows, inside, row_ids, split = program_rows(z_id, n, ROWS)
    row_low, row_high = tl.load(low + rows, inside, 4.0)[:, None], tl.load(high + rows, inside, 4.0)[:, None]
    # Offsets in 32 bits: there is memory for fewer slots.
    owner, lane = (rows * PARTS + split)[:, None] * COLUMNS, tl.arange(0, COLUMNS)[None, :]
    place = owner * SLOTS + lane
    x = z.load([first, 0])
    count = tl.zeros((ROWS, COLUMNS), tl.int32)
    for start in range(split * COLUMNS, m, tl.num_programs(1) * COLUMNS):
        s = _similarities(x, z, p, first, start, ROWS, COLUMNS, WIDTH, DEPTH, PRECISION)
        any_excluded = may_share_ids(first, start + id_shift, period, ROWS, COLUMNS) | (start + COLUMNS > m)
        if any_excluded:
            columns = start + tl.arange(0, COLUMNS)
            s = tl.where(excluded_pairs(row_ids, p_id, columns, m, FULL_TILES), -3.0, s)
        count = _collect(s, row_low, row_high, count, values, place, SLOTS, COLUMNS, FAST)
    tl.store(collected + owner + lane, count >> 16, inside[:, None])
    tl.store(above + split * n + rows, tl.sum(count & 0xFFFF, 1), inside)


@triton.jit
def select_kernel(
    values, collected, above, k, low, high, thresholds, resolved, n,
    PARTS: tl.constexpr, SLOTS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Find each row's `k`-th largest similarity, and whether it is one of the collected values.

    PARTS are the splits of `collect_kernel`.
    """
    row, part = tl.program_id(0).to(tl.int64), tl.arange(0, PARTS)
    place = tl.arange(0, PARTS * SLOTS * COLUMNS)
    owner = place // (SLOTS * COLUMNS) * COLUMNS + place % COLUMNS  # of its slot: one lane of one split
    counts = tl.load(collected + row * (PARTS * COLUMNS) + owner)
    present = place // COLUMNS % SLOTS < counts
    x = tl.load(values + row * (PARTS * SLOTS * COLUMNS) + place, present, -4.0)
    found = tl.sum(present.to(tl.int32), 0)
    wanted = (tl.load(k + row) - tl.sum(tl.load(above + part * n + row), 0)).to(tl.int32)
    known = (wanted >= 1) & (wanted <= found) & (tl.max(counts, 0) <= SLOTS)
    # `at_lower` ≥ `wanted` values are at or above `lower`, and `at_upper` < `wanted` at or above `upper`.
    lower, upper, at_lower, at_upper = tl.load(low + row), tl.load(high + row), found, wanted * 0
    step = 0
    while known & (at_lower != wanted) & (upper - lower > BAND):
        middle = _between(lower, upper, at_lower, at_upper, wanted - 0.5, step)
        count = tl.sum((x >= middle).to(tl.int32), 0)
        reached = count >= wanted
        lower, at_lower = tl.where(reached, middle, lower), tl.where(reached, count, at_lower)
        upper, at_upper = tl.where(reached, upper, middle), tl.where(reached, at_upper, count)
        step += 1
    tl.store(thresholds + row, tl.min(tl.where(x >= lower, x, 4.0), 0))  # the value itself
    tl.store(resolved + row, known)
