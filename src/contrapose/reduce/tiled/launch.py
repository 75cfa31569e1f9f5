"""Launch kernels over tiles of a similarity matrix, and turn blocks of ∂L/∂s into gradients of the embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from contrapose.reduce.block import Selection
from contrapose.reduce.kernel_launch import launch_kernel, specialisation
from contrapose.reduce.matrix_blocks import MatrixBlock
from contrapose.reduce.request import part

BLOCK = 8192  # rows and columns of a block
# (rows, columns, coordinates per step, warps, pipeline stages) of a tile, by precision: the fastest on an H200. Square, since a
# block on the diagonal leaves out the tiles below it.
Tile = tuple[int, int, int, int, int]
TILES: dict[str, Tile] = {
    "bf16": (128, 128, 64, 4, 3),
    "tf32": (128, 128, 32, 4, 3),
    "tf32x3": (64, 64, 32, 4, 2),
    "ieee": (64, 64, 32, 4, 2),
}
# With a guide, two tiles of similarities are live at once, which takes more warps, and a stage holds coordinates of both.
GUIDED_TILES: dict[str, Tile] = {
    "bf16": (128, 128, 64, 8, 3),
    "tf32": (128, 128, 32, 8, 3),
    "tf32x3": (64, 64, 32, 4, 2),
    "ieee": (64, 64, 32, 4, 2),
}


def tile_width(d: int) -> int:
    """Return the width of operands: rows must start at multiples of 16 bytes."""
    return -(-d // 8) * 8


def _descriptor(x: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Return a descriptor with which kernels load or store x in tiles; elements outside x load as zero and are not stored."""
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [rows, columns])


class TileLaunch:
    """The tiles of one similarity matrix, z · pᵀ: kernels are launched with one program for each tile of a block.

    With a `guide`, two more operands, kernels also get the tiles of its matrix; kernels that `may_be_guided` get None without
    one.
    """

    def __init__(
        self,
        z: Tensor,
        p: Tensor,
        selection: Selection,
        precision: str,
        *,
        tile: Tile | None = None,
        guide: tuple[Tensor, Tensor] | None = None,
        may_be_guided: bool = False,
    ) -> None:
        self.z, self.p = z, p
        self.ids, self.id_period = (selection.anchor_id, selection.pool_id), selection.id_period
        tiles = TILES if guide is None else GUIDED_TILES
        self.rows, self.columns, depth, self.warps, self.stages = tile or tiles[precision]
        self.operands: tuple[TensorDescriptor | None, ...] = (
            _descriptor(z, self.rows, depth),
            _descriptor(p, self.columns, depth),
        )
        self.constants = {
            "ROWS": self.rows, "COLUMNS": self.columns, "WIDTH": z.shape[1], "DEPTH": depth,
            "PRECISION": "ieee" if precision == "bf16" else precision, "FAST": z.is_cuda,
        }  # fmt: skip
        if guide is not None:
            q, r = guide
            self.operands += _descriptor(q, self.rows, depth), _descriptor(r, self.columns, depth)
            self.constants["GUIDE_WIDTH"] = q.shape[1]
        elif may_be_guided:
            self.operands += None, None
            self.constants["GUIDE_WIDTH"] = 0

    def grid(self, block: MatrixBlock) -> tuple[int, int]:
        """Return the number of tiles down and across a block."""
        return -(-block.height // self.rows), -(-block.width // self.columns)

    def __call__(
        self,
        kernel: Any,
        block: MatrixBlock,
        *buffers: Tensor,
        out: Tensor | None = None,
        out_tiles: Sequence[tuple[int, int]] | None = None,
        numbers: tuple[float, ...] = (),
        **constants: Any,
    ) -> None:
        """Call kernel(z, p, [guide,] ids, *buffers, out, the block's bounds, period, *numbers, **constants) for each tile.

        `out` (rows, columns) is written tile by tile; a kernel that writes other shapes gets `out` once for each of `out_tiles`.
        """
        buffers = (*self.ids, *buffers)
        sizes = (block.rows.start, block.rows.stop, block.columns.start, block.columns.stop, self.id_period)
        shapes = out_tiles or ((self.rows, self.columns),)
        written = () if out is None else tuple(_descriptor(out, *shape) for shape in shapes)
        constants = self.constants | constants | {
            "COLUMNS_ARE_ANCHORS": block.serves_columns, "TRIANGLE": block.diagonal,
            "FULL_TILES": block.height % self.rows == 0 and block.width % self.columns == 0,
        }  # fmt: skip
        launch_kernel(
            kernel, (*self.grid(block), 1), (*self.operands, *buffers, *written, *sizes, *numbers),
            (self.z.dtype, specialisation(buffers, sizes)), constants, near=self.z, warps=self.warps, stages=self.stages,
        )  # fmt: skip


class BlockGradients:
    """Gradients of the operands z and p of a similarity matrix, summed over its blocks in float32.

    A kernel writes ∂L/∂s of a block to `weights`, in the precision of the operands; `add` multiplies it with the operands. If
    z and p are one tensor, there is only one gradient.
    """

    def __init__(self, z: Tensor, p: Tensor, *, same: bool, wants_rows: bool, wants_columns: bool) -> None:
        self.z, self.p, self.same = z, p, same
        self.of_rows = torch.empty_like(z, dtype=torch.float32) if wants_rows else None
        # Zeros: the blocks need not cover all columns.
        self.of_columns = self.of_rows if same else torch.zeros_like(p, dtype=torch.float32) if wants_columns else None
        self.begun: set[tuple[int, int, int, bool]] = set()
        self.buffer: Tensor | None = None

    def weights(self, block: MatrixBlock, *, rows: int | None = None) -> Tensor:
        """Return a buffer for ∂L/∂s of a block, (rows, columns), valid until the next block; `rows`: not the block's number."""
        height = block.height if rows is None else rows
        stride = -(-block.width // 64) * 64  # the matrix product needs rows that start at multiples of 16 bytes
        buffer = self.buffer
        if buffer is None or buffer.numel() < height * stride:
            buffer = self.buffer = self.z.new_empty((height, stride))
        elif buffer.shape != (height, stride):
            buffer = buffer.view(-1)[: height * stride].view(height, stride)
        return buffer if stride == block.width else buffer[:, : block.width]

    def add(self, block: MatrixBlock, weights: Tensor, coordinates: slice | None = None) -> None:
        """Add a block's contribution: weights · p to its rows and weightsᵀ · z to its columns; a diagonal block adds both.

        With `coordinates`, only these get a contribution, and the others may have other weights.
        """
        if self.of_rows is not None:
            self._add_product(self.of_rows, block.rows, weights, part(self.p, block.columns), coordinates)
        if self.of_columns is not None and not block.diagonal:
            self._add_product(self.of_columns, block.columns, weights.T, part(self.z, block.rows), coordinates)

    def _add_product(self, total: Tensor, rows: slice, weights: Tensor, z: Tensor, coordinates: slice | None) -> None:
        # Blocks are always cut at the same rows, so the first product can overwrite uninitialised memory.
        first = 0 if coordinates is None else coordinates.start
        key, out = (rows.start, rows.stop, first, total is self.of_rows), part(total, rows)
        if coordinates is not None:
            out, z = out[:, coordinates], z[:, coordinates]
        beta = float(key in self.begun or total is not self.of_rows)
        self.begun.add(key)
        precision = {} if weights.dtype == torch.float32 else {"out_dtype": torch.float32}
        torch.addmm(out, weights, z, beta=beta, out=out, **precision)  # type: ignore[call-overload]

    def result(self, d: int) -> tuple[Tensor | None, Tensor | None]:
        """Return the gradients of z and p without padding, (n, d) and (m, d); the second is None if z and p are one tensor."""
        of_rows, of_columns = self.of_rows, None if self.same else self.of_columns
        if d < self.z.shape[1]:
            of_rows = None if of_rows is None else of_rows[:, :d]
            of_columns = None if of_columns is None else of_columns[:, :d]
        return of_rows, of_columns
