"""The tiled engine: statistics of wide embeddings, from tiles of the similarity matrix; gradients by matrix products.

A row's gradient with more than a few hundred coordinates does not fit in registers. So the matrix is cut into blocks of about
10⁸ entries. In the forward pass, a kernel computes each tile of a block and stores the tile's sums over columns and over rows,
but no similarities. In the backward pass, a kernel writes ∂L/∂s of one block, in bf16 for bf16 products, and torch's matrix
product multiplies it with the embeddings.

A tile serves both directions: if rows and columns are anchors (two views of a batch, or both directions of CLIP), its sums
over columns belong to the rows and its sums over rows to the columns. If anchors and pool are one tensor, only blocks and
tiles on and above the diagonal are computed. Every result has one owner and sums are added in a fixed order: there are no
atomics, and results are bit-identical in every call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from contrapose.reduce.engine import Engine, Gradients, Needs, Operands, Tensors
from contrapose.reduce.hardest.sums import HardestSums, plane_count
from contrapose.reduce.kernel_launch import launch_kernel, specialisation
from contrapose.reduce.matrix_blocks import matrix_blocks
from contrapose.reduce.request import LOG2E, TOTAL, KernelRequest, row_data, scaled_gradients
from contrapose.reduce.tiled.kernels import merge_kernel, sum_tiles_kernel, weigh_tiles_kernel
from contrapose.reduce.tiled.launch import BLOCK, BlockGradients, TileLaunch
from contrapose.reduce.unit import same_tensor

_FORWARD_BLOCK = 2 * BLOCK  # tile sums take less memory than ∂L/∂s, so blocks can be larger
# Anchors per program of the kernel that merges sums, and tiles that it reads at a time
_MERGED_ROWS, _MERGED_TILES = 32, 16


def forward(operands: Operands, request: KernelRequest, needs: Needs) -> tuple[Tensors, Tensors]:
    """Return log-sum-exps and, if requested, the second statistic, (n,) each."""
    z, p = operands.z, operands.p
    data = row_data(request, slice(0, len(z)), z)
    tile_sums = _tile_sums(_launch(request, z, p), request, data, same=operands.same)
    if request.hardest is not None:
        hardest = HardestSums(request, z[:, 0])
        for anchors, parts in tile_sums:
            hardest.add(anchors, parts)
        *results, tie_weight = hardest.results()
    else:
        results, tie_weight = list(z.new_empty((2, len(z)), dtype=torch.float32).unbind()), z
        merged: set[int] = set()  # first anchors of the blocks of rows that have results
        for anchors, parts in tile_sums:
            _merge(parts, anchors, results, request, first=anchors.start not in merged)
            merged.add(anchors.start)
    return tuple(results[: request.output_count]), (z, p, *results, *data, tie_weight)


def backward(request: KernelRequest, saved: Sequence[Tensor], gradients: Tensors, needs: Needs) -> Gradients:
    """Return the gradients of anchors, pool and learned factor."""
    z, p, lse, second, *data = saved
    upstream = gradients[0].contiguous()
    d_anchor = d_pool = None
    if needs.anchor or needs.pool:
        scaled = scaled_gradients(request, lse, second, upstream, gradients[-1])
        summed = BlockGradients(z, p, same=same_tensor(z, p), wants_rows=needs.anchor, wants_columns=needs.pool)
        _add_gradients(summed, _launch(request, z, p), request, (*data, lse, *scaled))
        d_anchor, d_pool = summed.result(request.width)
    return d_anchor, d_pool, upstream * second if needs.learned else None


def _launch(request: KernelRequest, z: Tensor, p: Tensor) -> TileLaunch:
    guide = None if request.guide is None else (request.guide.z, request.guide.p)
    return TileLaunch(z, p, request.selection, request.precision, guide=guide, may_be_guided=True)


def _tile_sums(
    launch: TileLaunch, request: KernelRequest, data: Tensors, *, same: bool
) -> Iterator[tuple[slice, Tensor]]:
    """Yield anchors and their tile sums, (planes, tiles, anchors): a block's rows and, if they are anchors, its columns."""
    # Total, second sum, largest exponent
    planes = 3 if not request.phi.is_bounded else 2 if request.sums else 1
    planes = planes if request.hardest is None else plane_count(request)
    for block in matrix_blocks(request.selection.runs, same=same, block=_FORWARD_BLOCK):
        down, across = launch.grid(block)
        of_rows = of_columns = launch.z.new_empty((planes, across, block.height), dtype=torch.float32)
        both = block.serves_columns and not block.diagonal
        if both:
            of_columns = of_rows.new_empty((planes, down, block.width))
        launch(
            sum_tiles_kernel, block, *data, of_rows, of_columns, numbers=request.numbers, **request.constants
        )  # fmt: skip
        yield block.rows, of_rows
        if both:
            yield block.columns, of_columns


def _merge(parts: Tensor, anchors: slice, results: Sequence[Tensor], request: KernelRequest, *, first: bool) -> None:
    """Merge sums of tiles, (planes, tiles, anchors), into the results, (n,) each: log-sum-exps and second sums."""
    _, tiles, count = parts.shape
    lse, second = results
    buffers, sizes = (parts, lse, second), (anchors.start, count, tiles)
    constants = {"CONSTANT_SHIFT": request.phi.is_bounded, "SECOND": request.sums, "FIRST": first}
    launch_kernel(
        merge_kernel, (-(-count // _MERGED_ROWS), 1, 1),
        (*buffers, *sizes, LOG2E * request.phi.shift, LOG2E * request.shift2),
        specialisation(buffers, sizes), constants | {"ROWS": _MERGED_ROWS, "STEP": _MERGED_TILES}, near=parts, warps=4, stages=1,
    )  # fmt: skip


def _add_gradients(
    summed: BlockGradients, launch: TileLaunch, request: KernelRequest, data: tuple[Tensor, ...]
) -> None:
    """Add every block's contribution to the gradients; `data` holds the anchors' buffers that `weigh_tiles_kernel` reads."""
    constants = request.constants | {
        "FIXED_WEIGHTS": request.fixed_weights,
        # An expectation that only a learned factor needed has no gradient of its own.
        "SECOND": request.sums if request.output_count == 2 else TOTAL,
    }
    for block in matrix_blocks(request.selection.runs, same=summed.same, block=BLOCK):
        weights = summed.weights(block)
        launch(weigh_tiles_kernel, block, *data, out=weights, numbers=request.numbers, **constants)
        summed.add(block, weights)


TILED = Engine("tiled", forward, backward, is_repeatable=True)
