"""How a kernel is launched: the size of its tiles, and how many programs share out the columns of a row."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from contrapose.reduce.hardware import on_device

# (rows, columns, warps, stages) of a tile, by precision and stage, measured on an H200 at n = 65,536 and d = 128.
Tile = tuple[int, int, int, int]
FORWARD, GATHER, BACKWARD = range(3)
_TILES: dict[tuple[str, int], Tile] = {
    ("bf16", FORWARD): (128, 128, 4, 2),
    ("bf16", GATHER): (64, 128, 4, 2),
    ("bf16", BACKWARD): (64, 128, 4, 2),
    ("tf32", FORWARD): (128, 32, 4, 2),
    ("tf32", GATHER): (128, 32, 4, 2),
    ("tf32", BACKWARD): (128, 32, 4, 2),
    ("tf32x3", FORWARD): (64, 64, 4, 2),
    ("tf32x3", GATHER): (128, 64, 8, 2),
    ("tf32x3", BACKWARD): (128, 64, 8, 2),
}
_ANY: Tile = (64, 32, 4, 2)
COUNT: Tile = (64, 64, 4, 2)
_FEW = 4096  # rows, which in large tiles would leave most of the chip without work
_JOINED = 128  # rows of a program that puts partial results together
LEAST_TILES = 4  # of a program that has a share of the columns


def tile_of(precision: str, stage: int, rows: int, d: int) -> Tile:
    """Large tiles for many rows, small ones for few or wide rows."""
    if precision == "bf16" and d <= 128 and rows <= _FEW:
        return (16, 128, 4, 2) if rows <= _FEW // 8 else (64, 64, 4, 3)
    if d > 128:
        return (64, 64, 8, 2) if precision == "bf16" else (64, 32, 8, 1)
    return _TILES.get((precision, stage), _ANY)


class Launch:
    """A kernel over rows and shares of the columns."""

    def __init__(self, tile: Tile, z: Tensor, p: Tensor, d: int, precision: str) -> None:
        self.z, self.p, self.d, self.tile = z, p, d, tile
        self.precision = "ieee" if precision == "bf16" else precision
        (self.n, self.width), self.m = z.shape, p.shape[0]
        self.grid, self.each = _shared_out(self.n, self.m, tile, z.device)
        self.splits = self.grid[1]

    def __call__(self, kernel: Any, *buffers: Tensor, numbers: tuple[float, ...], **constants: Any) -> None:
        """`buffers` follow the two operands in the kernel's arguments, then sizes, then `numbers`."""
        rows, columns, warps, stages = self.tile
        operands = [
            TensorDescriptor(x, list(x.shape), [self.width, 1], [tile, self.width])
            for x, tile in ((self.z, rows), (self.p, columns))
        ]
        constants |= {
            "ROWS": rows, "COLUMNS": columns, "WIDTH": self.width, "PRECISION": self.precision, "EVEN": self.m % columns == 0,
        }  # fmt: skip
        sizes = (self.n, self.m, self.d, self.each)
        given = (*operands, *buffers, *sizes, *numbers)
        launch(kernel, self.grid, given, (self.z.dtype, _kind(buffers, sizes)), constants, self.z, warps, stages)

    def joined(
        self, kernel: Any, parts: Tensor, parts2: Tensor, most: float, **constants: Any
    ) -> tuple[Tensor, Tensor]:
        """Partial results, (splits, n) each, put together."""
        made = parts.new_empty((2, self.n))
        given, sizes = (parts, parts2, *made), (self.n, self.splits)
        grid, constants = (_ceil(self.n, _JOINED), 1, 1), constants | {"ROWS": _JOINED}
        launch(kernel, grid, (*given, *sizes, most), _kind(given, sizes), constants, parts, 4, 1)
        return made[0], made[1]


_COMPILED: dict[tuple[Any, ...], Any] = {}


def launch(
    kernel: Any, grid: tuple[int, int, int], given: tuple[Any, ...], kind: tuple[Any, ...], constants: dict[str, Any],
    where: Tensor, warps: int, stages: int,
) -> None:  # fmt: skip
    """kernel[grid](…), with the compiled kernel kept: for small problems Triton's look-up takes longer than the work."""
    key = (kernel.__name__, where.device, kind, *constants.items(), warps, stages)
    compiled = _COMPILED.get(key)
    with on_device(where):
        if compiled is None:
            _COMPILED[key] = kernel[grid](*given, **constants, num_warps=warps, num_stages=stages)
        else:
            compiled[grid](*given, *(constants[name] for name in kernel.arg_names[len(given) :]))


def _kind(buffers: tuple[Tensor, ...], sizes: tuple[int, ...]) -> tuple[Any, ...]:
    """What Triton compiles for: types, addresses that are multiples of 16, numbers that are that, or 1."""
    return *((x.dtype, x.data_ptr() % 16 == 0) for x in buffers), *((x == 1, x % 16 == 0) for x in sizes)


@lru_cache
def _shared_out(n: int, m: int, tile: Tile, device: torch.device) -> tuple[tuple[int, int, int], int]:
    """The grid, and how many columns a program has. Partial results have to be put together: only long rows are shared."""
    rows, columns, _, _ = tile
    blocks, tiles = _ceil(n, rows), _ceil(m, columns)
    shares = max(1, min(2 * _processors(device) // blocks, tiles // LEAST_TILES))
    each = _ceil(tiles, shares) * columns
    return (blocks, _ceil(m, each), 1), each


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


@lru_cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
