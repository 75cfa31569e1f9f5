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

from contrapose.reduce.comparisons import Comparison, comparisons
from contrapose.reduce.derivatives import check_backward
from contrapose.reduce.launch import launch, specialisation
from contrapose.reduce.reduction import LOG2E, TOTAL, Reduction, row_data, scaled_gradients
from contrapose.reduce.tile_kernels import merge_kernel, sum_tiles_kernel, weigh_tiles_kernel
from contrapose.reduce.tiles import BLOCK, BlockGradients, Tiles
from contrapose.reduce.unit import same_tensor

_FORWARD_BLOCK = 2 * BLOCK  # sums of tiles take less memory than ∂L/∂s, so that blocks can be larger
# Anchors per program of the kernel that merges sums, and tiles that it reads at a time
_MERGED_ROWS, _MERGED_TILES = 32, 16


class TiledStatistics(torch.autograd.Function):
    """Takes `anchor` and `pool` only for autograd; kernels read the operands z and p."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, pool: Tensor, learned: Tensor | None, z: Tensor, p: Tensor, reduction: Reduction
    ) -> tuple[Tensor, ...]:
        """Return log-sum-exps and, if asked for, the second statistic, (n,) each."""
        ctx.same, ctx.width, ctx.reduction = same_tensor(anchor, pool), anchor.shape[1], reduction
        tiles, data = _tiles(reduction, z, p), row_data(reduction, slice(0, len(z)), z)
        results = z.new_empty((2, len(z)), dtype=torch.float32).unbind()
        merged: set[int] = set()  # first anchors of the blocks of rows that have results
        for block in comparisons(reduction.selection.runs, same=ctx.same, block=_FORWARD_BLOCK):
            for anchors, parts in _sums(tiles, block, reduction, data):
                merge(parts, anchors, results, reduction, first=anchors.start not in merged)
                merged.add(anchors.start)
        ctx.save_for_backward(z, p, *results, *data)
        return results[: reduction.output_count]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of anchor, pool and learned factor."""
        check_backward(*gradients)
        reduction: Reduction = ctx.reduction
        z, p, lse, second, *data = ctx.saved_tensors
        wants_anchor, wants_pool, wants_factor, *_ = ctx.needs_input_grad
        upstream = gradients[0].contiguous()
        d_anchor = d_pool = None
        if wants_anchor or wants_pool:
            scaled = scaled_gradients(reduction, lse, second, upstream, gradients[-1])
            summed = BlockGradients(z, p, same=ctx.same, wants_rows=wants_anchor, wants_columns=wants_pool)
            _add_gradients(summed, _tiles(reduction, z, p), reduction, (*data, lse, *scaled))
            d_anchor, d_pool = summed.result(ctx.width)
        return d_anchor, d_pool, upstream * second if wants_factor else None, None, None, None


def _tiles(reduction: Reduction, z: Tensor, p: Tensor) -> Tiles:
    return Tiles(z, p, reduction.selection, reduction.precision)


def _sums(
    tiles: Tiles, block: Comparison, reduction: Reduction, data: tuple[Tensor, ...]
) -> list[tuple[slice, Tensor]]:
    """Return anchors and the sums of their tiles, (planes, tiles, anchors): the block's rows and, if they are, its columns."""
    down, across = tiles.grid(block)
    planes = 3 if not reduction.phi.is_bounded else 2 if reduction.sums else 1  # total, second sum, largest exponent
    of_rows = of_columns = tiles.z.new_empty((planes, across, block.height), dtype=torch.float32)
    results = [(block.rows, of_rows)]
    if block.both and not block.diagonal:
        of_columns = of_rows.new_empty((planes, down, block.width))
        results.append((block.columns, of_columns))
    tiles(
        sum_tiles_kernel, block, *data, of_rows, of_columns, numbers=reduction.numbers, **reduction.constants
    )  # fmt: skip
    return results


def merge(parts: Tensor, anchors: slice, results: tuple[Tensor, ...], reduction: Reduction, *, first: bool) -> None:
    """Merge sums of tiles, (planes, tiles, anchors), into the results, (n,) each: log-sum-exps and second sums."""
    _, tiles, count = parts.shape
    lse, second = results
    buffers, sizes = (parts, lse, second), (anchors.start, count, tiles)
    constants = {"CONSTANT_SHIFT": reduction.phi.is_bounded, "SECOND": reduction.sums, "FIRST": first}
    launch(
        merge_kernel, (-(-count // _MERGED_ROWS), 1, 1),
        (*buffers, *sizes, LOG2E * reduction.shift, LOG2E * reduction.shift2),
        specialisation(buffers, sizes), constants | {"ROWS": _MERGED_ROWS, "STEP": _MERGED_TILES}, near=parts, warps=4, stages=1,
    )  # fmt: skip


def _add_gradients(summed: BlockGradients, tiles: Tiles, reduction: Reduction, data: tuple[Tensor, ...]) -> None:
    """Add every block's part of the gradients; `data` are the anchors' buffers as `weigh_tiles_kernel` reads them."""
    constants = reduction.constants | {
        "FIXED_WEIGHTS": reduction.fixed_weights,
        # An expectation that only a learned factor needed has no gradient of its own.
        "SECOND": reduction.sums if reduction.output_count == 2 else TOTAL,
    }
    for block in comparisons(reduction.selection.runs, same=summed.same, block=BLOCK):
        weights = summed.weights(block)
        tiles(weigh_tiles_kernel, block, *data, out=weights, numbers=reduction.numbers, **constants)
        summed.add(block, weights)
