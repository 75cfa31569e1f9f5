"""The engine for any device, statistic, temperature and choice of negatives: blocks of rows of the similarity matrix.

A small matrix is kept for the backward pass; a large one is recomputed, block by block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from contrapose.reduce.block import Block, Source
from contrapose.reduce.engine import Engine, Gradients, Needs, Operands, Tensors
from contrapose.reduce.path import memory_limits
from contrapose.reduce.statistics import Statistic, learned_tensors
from contrapose.reduce.unit import matmul, same_tensor


@dataclass(frozen=True, eq=False)
class BlockRequest:
    """The statistics to compute, and the blocks of rows into which the source is divided."""

    source: Source
    statistics: tuple[Statistic, ...]
    rows: list[slice]
    keeps: bool  # whether the similarities are kept for the backward pass

    @property
    def learned(self) -> list[Tensor | None]:
        """The learned tensors of all statistics, in order; None for each tensor that needs no gradient."""
        return [tensor for statistic in self.statistics for tensor in learned_tensors(statistic)]

    def blocks(self, kept: Sequence[Tensor] = ()) -> Iterator[Block]:
        """Yield every block, from similarities that were kept in the forward pass or are recomputed."""
        for i, rows in enumerate(self.rows):
            yield self.source.block(rows, kept[i] if kept else self.similarity(rows))

    def similarity(self, rows: slice) -> Tensor:
        """Return the similarities of some rows, from products in the precision of the embeddings."""
        return self.source.similarity(rows, bf16=self.source.kernel_inputs.half_precision)


def request_blocks(source: Source, statistics: tuple[Statistic, ...], device: torch.device) -> BlockRequest:
    """Divide the rows of a source into blocks within the memory limits."""
    limits, rows = memory_limits(device), []
    for start, end, candidates in source.spans:
        step = max(limits.rows, limits.block // max(1, candidates))
        rows += [slice(first, min(first + step, end)) for first in range(start, end, step)]
    keeps = sum((end - start) * candidates for start, end, candidates in source.spans) <= limits.kept
    return BlockRequest(source, statistics, rows, keeps)


def by_autograd(source: Source, statistics: tuple[Statistic, ...]) -> tuple[Tensor, ...]:
    """Return statistics by plain operations: for similarity values, learned temperature functions and small matrices."""
    runs = [slice(start, end) for start, end, _ in source.spans]
    parts = [
        [statistic(block) for statistic in statistics]
        for block in (source.block(run, source.similarity(run)) for run in runs)
    ]
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))


def forward(operands: Operands, request: BlockRequest, needs: Needs) -> tuple[Tensors, Tensors]:
    """Return every statistic of every row, (n,) each."""
    kept = [request.similarity(rows) for rows in request.rows] if request.keeps and needs.any else []
    values = _values(request, kept)
    return values, (operands.anchor, operands.pool, *values, *kept)


def _values(request: BlockRequest, kept: Sequence[Tensor]) -> Tensors:
    values: list[Tensor] = []
    for block in request.blocks(kept):
        parts = [statistic(block) for statistic in request.statistics]
        if len(request.rows) == 1:
            return tuple(parts)
        # Allocated before the second block: small results kept between large blocks would fragment memory.
        values = values or [part.new_empty((request.rows[-1].stop, *part.shape[1:])) for part in parts]
        for whole, part in zip(values, parts, strict=True):
            whole[block.rows] = part
    return tuple(values)


def backward(request: BlockRequest, saved: Sequence[Tensor], gradients: Tensors, needs: Needs) -> Gradients:
    """Return the gradients of anchors, pool and learned tensors."""
    anchor, pool, *rest = saved
    values, kept = rest[: len(request.statistics)], rest[len(request.statistics) :]
    half = request.source.kernel_inputs.half_precision
    # If one block holds a matrix that is its own transpose, both terms of the gradient are one product, (G + Gᵀ) z.
    symmetric = needs.anchor and needs.pool and len(request.rows) == 1 and same_tensor(anchor, pool)
    d_anchor = torch.empty_like(anchor) if needs.anchor and not symmetric else None
    d_pool = torch.zeros_like(pool) if needs.pool and not symmetric else None
    learned = request.learned
    d_learned: list[list[Tensor]] = [[] for _ in learned]
    for block in request.blocks(kept):
        of_block = [gradient[block.rows] for gradient in gradients]
        total, parts = _block_gradients(request.statistics, block, [value[block.rows] for value in values], of_block)
        for of_tensor, part in zip(d_learned, parts, strict=True):
            of_tensor += [] if part is None else [part]
        total = _all_columns(total, block, len(pool[block.pool]))
        if symmetric:
            d_anchor = matmul(total + total.T, anchor, bf16=half)
            break
        if d_anchor is not None:
            d_anchor[block.rows] = matmul(total, pool[block.pool], bf16=half)
        if d_pool is not None:
            d_pool[block.pool] += matmul(total.T, anchor[block.rows], bf16=half)
    # One number per anchor, or one for all anchors, whose gradients are summed.
    reduced = [
        None if tensor is None or not parts else torch.cat(parts) if tensor.ndim else torch.cat(parts).sum()
        for tensor, parts in zip(learned, d_learned, strict=True)
    ]
    return d_anchor, d_pool, *reduced


def _block_gradients(
    statistics: Sequence[Statistic], block: Block, values: Sequence[Tensor], gradients: Sequence[Tensor]
) -> tuple[Tensor | None, list[Tensor | None]]:
    """Return ∂L/∂s of a block, (b, c) or None for zero, and the gradients of learned tensors, one for each of its rows."""
    total, learned = None, []
    for statistic, value, gradient in zip(statistics, values, gradients, strict=True):
        d_similarity, *d_tensors = statistic.backward(block, value, gradient)
        learned += d_tensors
        if d_similarity is not None:
            total = d_similarity if total is None else total.add_(d_similarity)
    return total, learned


def _all_columns(total: Tensor | None, block: Block, width: int) -> Tensor:
    """Scatter gradients of the chosen similarities to their original columns, (b, width); zeros for None."""
    rows = block.similarity.shape[0]
    if total is None:
        return block.similarity.new_zeros((rows, width))
    if block.columns is None:
        return total
    return total.new_zeros((rows, width)).scatter_(1, block.columns, total)


BLOCKS = Engine("blocks", forward, backward, is_repeatable=True)
