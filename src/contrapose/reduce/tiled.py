"""Row statistics of wide embeddings: tiles of the similarity matrix in kernels, their gradient by matrix products.

A row's gradient of more than a few hundred coordinates does not fit in registers. So the matrix is cut into blocks of about
10⁸ entries. In the forward pass a kernel computes each tile of a block and stores its sums, over columns and over rows; no
similarity is stored. In the backward pass a kernel writes ∂L/∂s of one block, in bf16 for bf16 products, and the library's
matrix product multiplies it with the embeddings.

A tile serves both directions: if rows and columns are anchors (two views of a batch, or both directions of CLIP), its sums
over columns belong to the rows and its sums over rows to the columns. If anchors and pool are one tensor, only blocks and
tiles on and above the diagonal are computed. Every result has one owner and sums are added in a fixed order: there are no
atomics, and the same input gives the same bits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from contrapose.reduce.comparisons import Comparison, comparisons
from contrapose.reduce.launch import launch, specialisation
from contrapose.reduce.reduction import LOG2E, TOTAL, Reduction, row_data, scaled_gradients
from contrapose.reduce.tile_kernels import merge_kernel, sum_tiles_kernel, weigh_tiles_kernel
from contrapose.reduce.unit import refuse_second_derivative, same_tensor

_BLOCK = 8192  # rows and columns of a block
# (rows and columns of a tile, coordinates per step, warps, pipeline stages) by precision: the fastest on an H200
_TILES = {"bf16": (128, 64, 4, 3), "tf32": (128, 32, 8, 3), "tf32x3": (64, 32, 4, 2), "ieee": (64, 32, 4, 2)}
_MERGED_ROWS = 128  # rows per program of the kernel that merges sums


def tile_width(d: int) -> int:
    """Return the width of operands: rows must start at multiples of 16 bytes."""
    return -(-d // 8) * 8


class _Tiles:
    """Launches kernels over the tiles of blocks of one similarity matrix, z · pᵀ."""

    def __init__(self, reduction: Reduction, z: Tensor, p: Tensor) -> None:
        self.z, self.p, self.reduction = z, p, reduction
        self.tile, depth, self.warps, self.stages = _TILES[reduction.precision]
        self.operands = tuple(TensorDescriptor(x, list(x.shape), [x.shape[1], 1], [self.tile, depth]) for x in (z, p))
        anchors = slice(0, len(z))
        self.ids = reduction.selection.anchor_id, reduction.selection.pool_id
        self.row_data = row_data(reduction, anchors, z)
        self.constants = reduction.constants | {
            "ROWS": self.tile, "COLUMNS": self.tile, "WIDTH": z.shape[1], "DEPTH": depth,
            "PRECISION": "ieee" if reduction.precision == "bf16" else reduction.precision, "FAST": z.is_cuda,
        }  # fmt: skip

    def __call__(
        self, kernel: Any, block: Comparison, *buffers: Tensor, sizes: tuple[int, ...] = (), **constants: Any
    ) -> None:
        """Call the kernel for each tile of a block."""
        (rows, columns), tile = (block.rows, block.columns), self.tile
        height, width = rows.stop - rows.start, columns.stop - columns.start
        buffers = (*self.ids, *self.row_data, *buffers)
        sizes = (rows.start, rows.stop, columns.start, columns.stop, *sizes)
        constants = self.constants | constants | {
            "COLUMNS_ARE_ANCHORS": block.both, "TRIANGLE": block.diagonal,
            "FULL_TILES": height % tile == 0 and width % tile == 0,
        }  # fmt: skip
        launch(
            kernel, (-(-height // tile), -(-width // tile), 1), (*self.operands, *buffers, *sizes, *self.reduction.numbers),
            (self.z.dtype, specialisation(buffers, sizes)), constants, near=self.z, warps=self.warps, stages=self.stages,
        )  # fmt: skip

    def sums(self, block: Comparison) -> tuple[Tensor, Tensor]:
        """Return the sums of the block's tiles over columns and over rows: (3, tiles, rows) and (3, tiles, columns)."""
        height, width = block.height, block.width
        down, across = -(-height // self.tile), -(-width // self.tile)
        of_rows = self.z.new_empty((3, across, height), dtype=torch.float32)
        of_columns = of_rows.new_empty((3, down, width)) if block.both and not block.diagonal else of_rows
        self(sum_tiles_kernel, block, of_rows, of_columns)
        return of_rows, of_columns

    def merge(self, parts: Tensor, anchors: slice, results: Tensor, *, first: bool) -> None:
        """Merge sums of tiles into the results (2, n): log-sum-exps and second sums."""
        _, tiles, count = parts.shape
        reduction, (lse, second) = self.reduction, results
        buffers, sizes = (parts, lse, second), (anchors.start, count, tiles)
        constants = {"CONSTANT_SHIFT": reduction.phi.is_bounded, "SECOND": reduction.sums, "FIRST": first}
        launch(
            merge_kernel, (-(-count // _MERGED_ROWS), 1, 1),
            (*buffers, *sizes, LOG2E * reduction.shift, LOG2E * reduction.shift2),
            specialisation(buffers, sizes), constants | {"ROWS": _MERGED_ROWS}, near=parts, warps=4, stages=1,
        )  # fmt: skip


class _Accumulator:
    """Sums matrix products into rows of a gradient, in float32. Rows that nothing was added to are undefined."""

    def __init__(self, like: Tensor) -> None:
        self.total = torch.empty_like(like, dtype=torch.float32)
        self.begun: set[tuple[int, int]] = set()

    def add(self, rows: slice, weights: Tensor, z: Tensor) -> None:
        """Add weights @ z to some rows. The same rows must always be added to together."""
        key = (rows.start, rows.stop)
        beta = 1.0 if key in self.begun else 0.0
        self.begun.add(key)
        out = self.total[rows]
        if weights.dtype == torch.float32:
            torch.addmm(out, weights, z, beta=beta, out=out)
        else:
            torch.addmm(out, weights, z, beta=beta, out_dtype=torch.float32, out=out)


class TiledStatistics(torch.autograd.Function):
    """Takes `anchor` and `pool` only for autograd; kernels read the operands z and p."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, pool: Tensor, learned: Tensor | None, z: Tensor, p: Tensor, reduction: Reduction
    ) -> tuple[Tensor, ...]:
        """Return log-sum-exps and, if asked for, the second statistic, (n,) each."""
        ctx.same, ctx.width, ctx.reduction = same_tensor(anchor, pool), anchor.shape[1], reduction
        tiles = _Tiles(reduction, z, p)
        results = z.new_empty((2, len(z)), dtype=torch.float32)
        merged: set[int] = set()  # first anchors of the blocks of rows that have results
        for block in comparisons(reduction.selection.runs, same=ctx.same, block=_BLOCK):
            of_rows, of_columns = tiles.sums(block)
            found = [(block.rows, of_rows)]
            if block.both and not block.diagonal:
                found.append((block.columns, of_columns))
            for anchors, parts in found:
                tiles.merge(parts, anchors, results, first=anchors.start not in merged)
                merged.add(anchors.start)
        ctx.save_for_backward(z, p, results)
        lse, second = results
        return (lse, second) if reduction.output_count == 2 else (lse,)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of anchor, pool and learned factor."""
        refuse_second_derivative()
        reduction: Reduction = ctx.reduction
        z, p, results = ctx.saved_tensors
        lse, second = results
        wants_anchor, wants_pool, wants_factor, *_ = ctx.needs_input_grad
        upstream = gradients[0].contiguous()
        d_anchor = d_pool = None
        if wants_anchor or wants_pool:
            saved = (lse, *scaled_gradients(reduction, lse, second, upstream, gradients[-1]))
            d_anchor, d_pool = _gradients(ctx, _Tiles(reduction, z, p), saved, wants_anchor, wants_pool)
        return d_anchor, d_pool, upstream * second if wants_factor else None, None, None, None


def _gradients(
    ctx: Any, tiles: _Tiles, saved: tuple[Tensor, ...], wants_anchor: bool, wants_pool: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of anchors and pool, (n, d) and (m, d); all in the first if both are one tensor."""
    z, p, reduction = tiles.z, tiles.p, tiles.reduction
    d_rows = _Accumulator(z)
    d_columns = d_rows if ctx.same else _Accumulator(p)
    sums = reduction.sums if reduction.output_count == 2 else TOTAL  # an expectation for a learned factor alone
    buffer: Tensor | None = None
    for block in comparisons(reduction.selection.runs, same=ctx.same, block=_BLOCK):
        height, width = block.height, block.width
        stride = -(-width // 64) * 64  # the matrix product wants rows that start at multiples of 16 bytes
        if buffer is None or buffer.numel() < height * stride:
            buffer = z.new_empty(height * stride)
        tiles(
            weigh_tiles_kernel,
            block,
            *saved,
            buffer,
            sizes=(stride,),
            SECOND=sums,
            FIXED_WEIGHTS=reduction.fixed_weights,
        )
        weights = buffer[: height * stride].view(height, stride)[:, :width]
        if ctx.same or wants_anchor:
            d_rows.add(block.rows, weights, p[block.columns])
        if not block.diagonal and (ctx.same or wants_pool):
            d_columns.add(block.columns, weights.T, z[block.rows])
    d = ctx.width
    if ctx.same:
        return d_rows.total[:, :d], None
    return d_rows.total[:, :d] if wants_anchor else None, d_columns.total[:, :d] if wants_pool else None
