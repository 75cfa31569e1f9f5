# mypy: ignore-errors
"""Triton kernels of nested losses: the similarities of all prefixes of the embeddings are partial sums of one product.

    ENDS, PREFIXES          the widths of the prefixes, ascending, and their number
    z_inverse, p_inverse    1 / ‖row[:width]‖ of rows and columns for each prefix, (n, PREFIXES) and (m, PREFIXES)
    NUMBERED                the ids of row and column r are r % period

`tiled.kernels` explains the other arguments. Tiles may have fewer rows than columns: a TRIANGLE leaves out those without a column
on or above the diagonal. A tile's sums and weights are computed for one half of its columns after the other, because the numbers
that belong to all columns would not fit in registers. Exponents are in base 2 inside a kernel and natural logarithms outside.
"""

import triton
import triton.language as tl

from contrapose.reduce.kernel_math import over_temperature
from contrapose.reduce.tiled.tile_math import excluded_by_number, replace_excluded, tile_of_program


@triton.jit
def _ends_prefix(width, ENDS: tl.constexpr, COUNT: tl.constexpr):
    """Return whether one of the first COUNT prefixes has this width."""
    found = width == ENDS[0]
    for prefix in tl.static_range(1, COUNT):
        found |= width == ENDS[prefix]
    return found


@triton.jit
def _halves(x):
    """Return the left and the right half of a tile."""
    return tl.split(tl.permute(tl.reshape(x, (x.shape[0], 2, x.shape[1] // 2)), (0, 2, 1)))


@triton.jit
def _numbers_of(x, start, inside, prefix, COUNT: tl.constexpr, PREFIXES: tl.constexpr, FULL_TILES: tl.constexpr):
    """Load the numbers of COUNT anchors from `start` on, for one prefix, from x (n, PREFIXES)."""
    # The first address is a scalar: an address for each column would take two registers each.
    here = x + (start * PREFIXES + prefix) + tl.arange(0, COUNT) * PREFIXES
    if FULL_TILES:
        numbers = tl.load(here)
    else:
        numbers = tl.load(here, inside, 0.0)
    return numbers


@triton.jit
def _exponentials(
    products, prefix, offset, tile, scalars, TEMPERATURE: tl.constexpr, DETACH: tl.constexpr, PREFIXES: tl.constexpr,
    NUMBERED: tl.constexpr, FULL_TILES: tl.constexpr, FAST: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Return e^{φ - shift} of a half tile, 0 for pairs that are not negatives; (s / τ(s))'; s; and s / products.

    `tile` holds the inverse norms and ids of rows and columns, and the tile's first row and column and their ends; the half has
    the columns from `offset` on.
    """
    z_inverse, p_inverse, z_id, p_id, row, column, row_end, column_end, period, any_excluded = tile
    times, low, span, curvature, shift = scalars
    ROWS: tl.constexpr = products.shape[0]
    COLUMNS: tl.constexpr = products.shape[1]
    column += offset
    rows, columns = row + tl.arange(0, ROWS), column + tl.arange(0, COLUMNS)
    row_inside, column_inside = rows < row_end, columns < column_end
    row_inverse = _numbers_of(z_inverse, row, row_inside, prefix, ROWS, PREFIXES, FULL_TILES)
    column_inverse = _numbers_of(p_inverse, column, column_inside, prefix, COLUMNS, PREFIXES, FULL_TILES)
    scale = row_inverse[:, None] * column_inverse[None, :]
    s = products * scale
    base, slope = over_temperature(s, low, span, curvature, TEMPERATURE, DETACH, FAST, HALF)
    e = tl.exp2(base * times - shift)
    if NUMBERED and FULL_TILES:
        e = tl.where(excluded_by_number(row, column, period, ROWS, COLUMNS), 0.0, e)
    else:
        e = replace_excluded(
            e, 0.0, z_id, p_id, rows, columns, row_inside, column_inside, any_excluded, FULL_TILES
        )  # fmt: skip
    return e, slope, s, scale


@triton.jit
def _store_sums(sums, parts, prefix, tile, tiles, first, end):
    """Store sums of anchors, `first` and those after it up to `end`, counted from the block's first, in row `tile` of a plane."""
    here = parts + ((prefix * tiles + tile).to(tl.int64) * end + first)
    index = tl.arange(0, sums.shape[0])
    tl.store(here + index, sums, first + index < end)


@triton.jit
def _place(row_start, row_end, column_start, column_end, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return where a program's tile lies: its row and column in the matrix, those in the block, and the tile on the diagonal."""
    i, j = tl.program_id(0), tl.program_id(1)
    top, left = i * ROWS, j * COLUMNS
    return row_start + top, column_start + left, top, left, top // COLUMNS


@triton.jit
def _sum_prefix(
    products, prefix, tile, scalars, block, row_parts, column_parts, sum_columns, TEMPERATURE: tl.constexpr,
    PREFIXES: tl.constexpr, NUMBERED: tl.constexpr, FULL_TILES: tl.constexpr, FAST: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Store a tile's sums over its columns and, if `sum_columns`, over its rows, for one prefix."""
    top, height, left, width = block
    halves = _halves(products)
    COLUMNS: tl.constexpr = products.shape[1] // 2
    row_sums = tl.zeros((products.shape[0],), tl.float32)
    for half in tl.static_range(2):
        e, _, _, _ = _exponentials(
            halves[half], prefix, half * COLUMNS, tile, scalars, TEMPERATURE, True, PREFIXES, NUMBERED, FULL_TILES, FAST, HALF
        )  # fmt: skip
        row_sums += tl.sum(e, 1)
        if sum_columns:
            sums, first = tl.sum(e, 0), left + half * COLUMNS
            _store_sums(sums, column_parts, prefix, tl.program_id(0), tl.num_programs(0), first, width)
    _store_sums(row_sums, row_parts, prefix, tl.program_id(1), tl.num_programs(1), top, height)


@triton.jit
def sum_prefix_tiles_kernel(
    z, p, z_id, p_id, z_inverse, p_inverse, row_parts, column_parts,
    row_start, row_end, column_start, column_end, period, times, low, span, curvature, shift,
    COLUMNS_ARE_ANCHORS: tl.constexpr, TRIANGLE: tl.constexpr, TEMPERATURE: tl.constexpr, ENDS: tl.constexpr,
    PREFIXES: tl.constexpr, NUMBERED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    DEPTH: tl.constexpr, PRECISION: tl.constexpr, FULL_TILES: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Sum e^{φ - shift} of each tile over its columns and, if columns are anchors, over its rows, for each prefix.

    `row_parts` is (PREFIXES, tiles across, rows), `column_parts` (PREFIXES, tiles down, columns).
    """
    row, column, top, left, diagonal = _place(row_start, row_end, column_start, column_end, ROWS, COLUMNS)
    if TRIANGLE and tl.program_id(1) < diagonal:
        return
    _, _, _, _, any_excluded = tile_of_program(
        row_start, row_end, column_start, column_end, period, ROWS, COLUMNS, FULL_TILES
    )
    tile = (z_inverse, p_inverse, z_id, p_id, row, column, row_end, column_end, period, any_excluded)
    scalars = (times, low, span, curvature, shift)
    block = (top, row_end - row_start, left, column_end - column_start)
    sum_columns = COLUMNS_ARE_ANCHORS
    if TRIANGLE:
        sum_columns = tl.program_id(1) > diagonal  # a tile on the diagonal holds both directions
    s, prefix = tl.zeros((ROWS, COLUMNS), tl.float32), 0
    # One loop with a branch: the loads of the next prefix run during the sums of this one. A loop for each prefix would wait.
    for k in range(0, ENDS[PREFIXES - 1], DEPTH):
        s = tl.dot(z.load([row, k]), tl.trans(p.load([column, k])), s, input_precision=PRECISION)
        if _ends_prefix(k + DEPTH, ENDS, PREFIXES):
            _sum_prefix(
                s, prefix, tile, scalars, block, row_parts, column_parts, sum_columns,
                TEMPERATURE, PREFIXES, NUMBERED, FULL_TILES, FAST, z.dtype == tl.bfloat16,
            )  # fmt: skip
            prefix += 1


@triton.jit
def _pack(left, right, PACKED: tl.constexpr):
    """Return two tiles as one: PACKED rounds to bf16, and a register holds one number of each."""
    if PACKED:
        both = tl.inline_asm_elementwise("cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [left, right], tl.int32, True, 1)
    else:
        both = tl.join(left, right)
    return both


@triton.jit
def _unpack(both, PACKED: tl.constexpr):
    """Return the two tiles that `_pack` made one."""
    if PACKED:
        halves = ((both << 16).to(tl.float32, bitcast=True), (both & -65536).to(tl.float32, bitcast=True))
    else:
        halves = tl.split(both)
    return halves


@triton.jit
def _weigh_prefix(
    products, prefix, tile, scalars, block, gradient, row_parts, column_parts, sum_columns,
    COLUMNS_ARE_ANCHORS: tl.constexpr, TEMPERATURE: tl.constexpr, DETACH: tl.constexpr, PREFIXES: tl.constexpr,
    NUMBERED: tl.constexpr, FULL_TILES: tl.constexpr, FAST: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Return the derivatives of one prefix's losses by the products in both halves of a tile, and store sums of ∂L/∂s · s.

    These sums are the derivatives by the logarithms of the inverse norms.
    """
    _, _, _, _, row, column, row_end, column_end, _, _ = tile
    top, height, left, width = block
    ROWS: tl.constexpr = products.shape[0]
    COLUMNS: tl.constexpr = products.shape[1] // 2
    halves, weights = _halves(products), ()
    row_sums = tl.zeros((ROWS,), tl.float32)
    row_inside = row + tl.arange(0, ROWS) < row_end
    for half in tl.static_range(2):
        e, slope, s, scale = _exponentials(
            halves[half], prefix, half * COLUMNS, tile, scalars, TEMPERATURE, DETACH, PREFIXES, NUMBERED, FULL_TILES, FAST, HALF
        )  # fmt: skip
        a = _numbers_of(gradient, row, row_inside, prefix, ROWS, PREFIXES, FULL_TILES)[:, None]
        if COLUMNS_ARE_ANCHORS:  # φ(s_ij) = φ(s_ji): one exponential serves both directions
            first = column + half * COLUMNS
            inside = first + tl.arange(0, COLUMNS) < column_end
            a += _numbers_of(gradient, first, inside, prefix, COLUMNS, PREFIXES, FULL_TILES)[None, :]
        weight = e * slope * a
        radial = weight * s
        row_sums += tl.sum(radial, 1)
        if sum_columns:
            sums = tl.sum(radial, 0)
            _store_sums(
                sums, column_parts, prefix, tl.program_id(0), tl.num_programs(0), left + half * COLUMNS, width
            )  # fmt: skip
        weights = weights + (weight * scale,)
    _store_sums(row_sums, row_parts, prefix, tl.program_id(1), tl.num_programs(1), top, height)
    return weights


@triton.jit
def _store_weights(
    weights, prefix, out, transposed, block, mirrored, COLUMNS: tl.constexpr, TRIANGLE: tl.constexpr
):  # fmt: skip
    """Write both halves of a tile of weights and, if `mirrored`, their transposes to plane `prefix` of `out`."""
    top, height, left, _ = block
    plane = prefix * tl.cdiv(height, COLUMNS) * COLUMNS  # planes have whole tiles, also transposed ones
    for half in tl.static_range(2):
        weight, column = weights[half].to(out.dtype), left + half * (COLUMNS // 2)
        out.store([plane + top, column], weight)
        if TRIANGLE:
            if mirrored:
                transposed.store([plane + column, top], tl.trans(weight))


@triton.jit
def weigh_prefix_tiles_kernel(
    z, p, z_id, p_id, z_inverse, p_inverse, gradient, row_parts, column_parts, out, transposed,
    row_start, row_end, column_start, column_end, period, times, low, span, curvature, shift,
    COLUMNS_ARE_ANCHORS: tl.constexpr, COLUMN_SUMS: tl.constexpr, TRIANGLE: tl.constexpr, TEMPERATURE: tl.constexpr,
    DETACH: tl.constexpr, ENDS: tl.constexpr, PREFIXES: tl.constexpr, NUMBERED: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr, FULL_TILES: tl.constexpr,
    FAST: tl.constexpr,
):  # fmt: skip
    """Write the derivatives of all losses by the products of each prefix's last coordinates to a plane of `out`.

    Those coordinates belong to all longer prefixes, too: their derivative is the sum of the derivatives of these prefixes. `out`
    has (PREFIXES · rows, columns), with rows rounded up to a multiple of COLUMNS. `row_parts` and `column_parts` are as in
    `sum_prefix_tiles_kernel`, with `column_parts` only for COLUMN_SUMS.
    """
    row, column, top, left, diagonal = _place(row_start, row_end, column_start, column_end, ROWS, COLUMNS)
    if TRIANGLE and tl.program_id(1) < diagonal:
        return
    _, _, _, _, any_excluded = tile_of_program(
        row_start, row_end, column_start, column_end, period, ROWS, COLUMNS, FULL_TILES
    )
    tile = (z_inverse, p_inverse, z_id, p_id, row, column, row_end, column_end, period, any_excluded)
    scalars = (times, low, span, curvature, shift)
    block = (top, row_end - row_start, left, column_end - column_start)
    mirrored = tl.program_id(1) > diagonal
    sum_columns = COLUMN_SUMS
    if TRIANGLE:
        sum_columns = mirrored
    HALF: tl.constexpr = z.dtype == tl.bfloat16
    PACKED: tl.constexpr = FAST and HALF
    s, prefix = tl.zeros((ROWS, COLUMNS), tl.float32), 0
    weights = _halves(s)
    held = (_pack(weights[0], weights[1], PACKED),) * (PREFIXES - 1)  # the weights of shorter prefixes
    for k in range(0, ENDS[PREFIXES - 1], DEPTH):
        s = tl.dot(z.load([row, k]), tl.trans(p.load([column, k])), s, input_precision=PRECISION)
        if _ends_prefix(k + DEPTH, ENDS, PREFIXES - 1):
            weights = _weigh_prefix(
                s, prefix, tile, scalars, block, gradient, row_parts, column_parts, sum_columns,
                COLUMNS_ARE_ANCHORS, TEMPERATURE, DETACH, PREFIXES, NUMBERED, FULL_TILES, FAST, HALF,
            )  # fmt: skip
            held = held[1:] + (_pack(weights[0], weights[1], PACKED),)
            prefix += 1
    weights = _weigh_prefix(
        s, PREFIXES - 1, tile, scalars, block, gradient, row_parts, column_parts, sum_columns,
        COLUMNS_ARE_ANCHORS, TEMPERATURE, DETACH, PREFIXES, NUMBERED, FULL_TILES, FAST, HALF,
    )  # fmt: skip
    _store_weights(weights, PREFIXES - 1, out, transposed, block, mirrored, COLUMNS, TRIANGLE)
    for longer in tl.static_range(1, PREFIXES):
        shorter = _unpack(held[PREFIXES - 1 - longer], PACKED)
        weights = (weights[0] + shorter[0], weights[1] + shorter[1])
        _store_weights(weights, PREFIXES - 1 - longer, out, transposed, block, mirrored, COLUMNS, TRIANGLE)
