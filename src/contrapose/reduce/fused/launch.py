"""Launch kernels over rows: choose the tile size, and how many programs share the columns of a row."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from contrapose.reduce.kernel_launch import launch_kernel, specialisation

# (rows, columns, warps, pipeline stages) of a tile, by precision and pass: the fastest on an H200 at n = 65,536, d = 128.
Tile = tuple[int, int, int, int]
FORWARD, FORWARD_WITH_MEAN, FORWARD_OF_HARDEST, FORWARD_BELOW, BACKWARD, BACKWARD_OF_HARDEST, BACKWARD_BELOW = range(7)
_TILES: dict[tuple[str, int], Tile] = {
    ("bf16", FORWARD): (128, 128, 4, 2),
    ("bf16", FORWARD_WITH_MEAN): (64, 128, 4, 2),
    ("bf16", FORWARD_OF_HARDEST): (64, 64, 4, 3),
    ("bf16", FORWARD_BELOW): (64, 128, 4, 3),
    ("bf16", BACKWARD): (128, 64, 4, 3),
    ("bf16", BACKWARD_OF_HARDEST): (64, 128, 4, 2),
    ("bf16", BACKWARD_BELOW): (128, 64, 4, 2),
    ("tf32", FORWARD): (128, 32, 4, 2),
    ("tf32", FORWARD_WITH_MEAN): (128, 32, 4, 2),
    ("tf32", BACKWARD): (128, 32, 4, 2),
    ("tf32x3", FORWARD): (64, 64, 4, 2),
    ("tf32x3", FORWARD_WITH_MEAN): (128, 64, 8, 2),
    ("tf32x3", BACKWARD): (128, 64, 8, 2),
}
_DEFAULT: Tile = (64, 32, 4, 2)
# The passes whose tiles replace those of passes over some of the negatives, in other precisions than bf16
_PLAIN = {
    FORWARD_OF_HARDEST: FORWARD,
    FORWARD_BELOW: FORWARD,
    BACKWARD_OF_HARDEST: BACKWARD,
    BACKWARD_BELOW: BACKWARD,
}
_FEW_ROWS = 4096  # up to this number of rows, large tiles would leave most multiprocessors idle
_COMBINED_ROWS = 128  # rows per program of the kernel that combines partial results
MIN_TILES = (
    4  # minimum of column tiles per program if programs share a row: with fewer, combining costs more than it saves
)


def tile_of(precision: str, direction: int, rows: int, d: int) -> Tile:
    """Return a large tile for many rows, a small one for few or wide rows."""
    if precision == "bf16" and d <= 128 and rows <= _FEW_ROWS:
        return (16, 128, 4, 2) if rows <= _FEW_ROWS // 8 else (64, 64, 4, 3)
    if d > 128:
        return (64, 64, 8, 2) if precision == "bf16" else (64, 32, 8, 1)
    if precision != "bf16":
        direction = _PLAIN.get(direction, direction)
    return _TILES.get((precision, direction), _DEFAULT)


class RowLaunch:
    """Launches kernels over rows z (n, width) and columns p (m, width): embeddings of d coordinates, padded.

    `splits` programs divide the columns of each row, `columns_per_program` for each.
    """

    def __init__(
        self,
        tile: Tile,
        z: Tensor,
        p: Tensor,
        d: int,
        precision: str,
        *,
        ids: tuple[int, int] = (1, 0),
        depth: int | None = None,
        splits: int | None = None,
    ) -> None:
        self.ids = ids  # period and shift: see `Selection.id_numbers`
        self.z, self.p, self.d, self.tile = z, p, d, tile
        self.depth = depth or z.shape[1]  # coordinates that a kernel loads at a time
        self.precision = "ieee" if precision == "bf16" else precision
        (self.n, self.width), self.m = z.shape, p.shape[0]
        self.grid, self.columns_per_program = _split_columns(self.n, self.m, tile, z.device, splits)
        self.splits = self.grid[1]

    def __call__(self, kernel: Any, *buffers: Tensor, numbers: tuple[float, ...], **constants: Any) -> None:
        """Call kernel(z, p, *buffers, n, m, d, columns_per_program, period, id_shift, *numbers, **constants)."""
        rows, columns, warps, stages = self.tile
        operands = [
            TensorDescriptor(x, list(x.shape), [self.width, 1], [tile, self.depth])
            for x, tile in ((self.z, rows), (self.p, columns))
        ]
        constants |= {
            "ROWS": rows, "COLUMNS": columns, "WIDTH": self.width, "PRECISION": self.precision,
            "FULL_TILES": self.m % columns == 0,
        }  # fmt: skip
        sizes = (self.n, self.m, self.d, self.columns_per_program, *self.ids)
        arguments = (*operands, *buffers, *sizes, *numbers)
        key = (self.z.dtype, specialisation(buffers, sizes))
        launch_kernel(kernel, self.grid, arguments, key, constants, near=self.z, warps=warps, stages=stages)

    def combine(
        self, kernel: Any, parts: Tensor, parts2: Tensor, shift: float, **constants: Any
    ) -> tuple[Tensor, Tensor]:
        """Combine partial results, (splits, n) each, into results of whole rows, (n,) each."""
        out = parts.new_empty((2, self.n))
        buffers, sizes = (parts, parts2, *out), (self.n, self.splits)
        grid, constants = (_ceil_div(self.n, _COMBINED_ROWS), 1, 1), constants | {"ROWS": _COMBINED_ROWS}
        key = specialisation(buffers, sizes)
        launch_kernel(kernel, grid, (*buffers, *sizes, shift), key, constants, near=parts, warps=4, stages=1)
        return out[0], out[1]


@lru_cache
def _split_columns(
    n: int, m: int, tile: Tile, device: torch.device, splits: int | None = None
) -> tuple[tuple[int, int, int], int]:
    """Return the grid, and the number of columns per program.

    Columns are split until there are two programs per multiprocessor. Partial results have to be combined, so only long
    rows are split.
    """
    rows, columns, _, _ = tile
    row_blocks, column_tiles = _ceil_div(n, rows), _ceil_div(m, columns)
    wanted = splits or max(1, min(2 * _multiprocessors(device) // row_blocks, column_tiles // MIN_TILES))
    columns_per_program = _ceil_div(column_tiles, wanted) * columns
    return (row_blocks, splits or _ceil_div(m, columns_per_program), 1), columns_per_program


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@lru_cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
