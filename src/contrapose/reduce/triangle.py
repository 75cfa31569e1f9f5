"""Log-sum-exps of a large symmetric matrix, of which only the half above the diagonal is computed."""

from __future__ import annotations

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from contrapose.reduce.kernels import triangle_kernel
from contrapose.reduce.launch import launch, specialisation
from contrapose.reduce.reduction import TOTAL, Reduction
from contrapose.reduce.tiled import merge

MIN_ROWS = 16384  # below, there are too few tiles for half of them to take half of the time
PANEL = 8192  # rows of one launch: sums over them are stored for every column
_RANGES = 8  # of the columns, one for each program of a block of rows
_TILE, _WARPS, _STAGES = 128, 4, 2


def sums_triangle(reduction: Reduction, n: int) -> bool:
    """Return whether this is one sum over all pairs of n embeddings, bounded and large enough."""
    everything = reduction.selection.runs == [(slice(0, n), slice(0, n))] and reduction.hardest is None
    bounded = reduction.phi.is_bounded and reduction.sums == TOTAL and reduction.precision == "bf16"
    return everything and bounded and n >= MIN_ROWS


def triangle_sums(reduction: Reduction, z: Tensor) -> tuple[Tensor, Tensor]:
    """Return log Σ e^φ and 1 / Σ e^{φ - shift} of each row, (n,) each."""
    n, ids = len(z), reduction.selection.anchor_id
    results = z.new_empty((2, n), dtype=torch.float32)
    for start in range(0, n, PANEL):
        of_rows, of_columns = _panel_sums(reduction, z, ids, start, min(PANEL, n - start))
        merge(of_columns, slice(start, n), results, reduction, first=start == 0)
        merge(of_rows, slice(start, start + of_rows.shape[2]), results, reduction, first=False)
    lse, second = results
    return lse, second


def _panel_sums(reduction: Reduction, z: Tensor, ids: Tensor, start: int, count: int) -> tuple[Tensor, Tensor]:
    """Return the sums of some rows over ranges of columns, (1, ranges, rows), and over blocks of rows, (1, blocks, n - start)."""
    (n, width), blocks = z.shape, -(-count // _TILE)
    per_program = -(-(n - start) // (_RANGES * _TILE)) * _TILE
    ranges = -(-(n - start) // per_program)
    of_rows = z.new_empty((1, ranges, count), dtype=torch.float32)
    of_columns = of_rows.new_empty((1, blocks, n - start))
    of_columns[:, :, :count] = 0.0  # left of the diagonal nothing is computed
    times, _, low, span, bend, shift, _ = reduction.numbers
    buffers, sizes = (ids, of_rows, of_columns), (start, n, count, per_program)
    constants = {
        "TEMPERATURE": reduction.phi.temperature, "ROWS": _TILE, "PRECISION": "ieee", "FULL_TILES": n % _TILE == 0,
        "FAST": z.is_cuda,
    }  # fmt: skip
    launch(
        triangle_kernel, (blocks, ranges, 1),
        (TensorDescriptor(z, list(z.shape), [width, 1], [_TILE, width]), *buffers, *sizes, times, low, span, bend, shift),
        (z.dtype, width, specialisation(buffers, sizes)), constants, near=z, warps=_WARPS, stages=_STAGES,
    )  # fmt: skip
    return of_rows, of_columns
