"""The engine for the most common case on the CPU: log-sum-exps of φ = s / τ with τ a number, in few passes over the matrix.

Plain autograd reads or writes the matrix about ten times. Here e^φ overwrites φ and needs no maximum, because |φ| is bounded;
∂L/∂s is e^φ times one number per row. A similarity between two anchors (two views of a batch, both directions of CLIP) is
computed once, and both terms of its gradient are one product. A small matrix of e^φ is kept for the backward pass; a large one
is recomputed block by block.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from contrapose.reduce.block import Selection
from contrapose.reduce.engine import Engine, Gradients, Needs, Operands, Tensors
from contrapose.reduce.exponent import MAX_SHIFT
from contrapose.reduce.logit import Logit, Scale
from contrapose.reduce.matrix_blocks import MatrixBlock, matrix_blocks
from contrapose.reduce.path import CPU_MEMORY
from contrapose.reduce.request import part
from contrapose.reduce.statistics import LogSumExp, Statistic
from contrapose.reduce.unit import full_precision, same_tensor

_PANEL = 2**18  # similarities that stay in the cache while exponential, mask and sum pass over them
_BLOCK = 2048  # rows and columns of a block of a matrix that is not kept


@dataclass(frozen=True, eq=False)
class SumRequest:
    """A request for log Σ_j e^{factor · s_ij} over each anchor's negatives, and the blocks into which the matrix is divided."""

    selection: Selection
    factor: float
    blocks: list[MatrixBlock]
    keep: bool  # whether the matrix is kept for the backward pass

    @property
    def is_one_panel(self) -> bool:
        """Whether the matrix is its own transpose and small enough for a single panel, so that no partial sums are needed."""
        block = self.blocks[0]
        return len(self.blocks) == 1 and block.diagonal and block.height * block.width <= _PANEL


def request_sums(anchor: Tensor, pool: Tensor, selection: Selection, factor: float) -> SumRequest:
    """Divide the matrix into blocks: one that is kept, or several that are recomputed in the backward pass."""
    keep = anchor.shape[0] * pool.shape[0] <= CPU_MEMORY.kept
    blocks = matrix_blocks(selection.runs, same=same_tensor(anchor, pool), block=2**62 if keep else _BLOCK)
    return SumRequest(selection, factor, list(blocks), keep)


def constant_scale(statistics: tuple[Statistic, ...], selection: Selection) -> float | None:
    """Return the factor of a single log-sum-exp over all negatives of φ = factor · s, |φ| ≤ 40; None for anything else."""
    if len(statistics) != 1 or not isinstance(statistics[0], LogSumExp) or not selection.keeps_all:
        return None
    return bounded_factor(statistics[0].logit)


def bounded_factor(logit: Logit) -> float | None:
    """Return the factor of φ = factor · s, |φ| ≤ 40; None for any other logit."""
    if not isinstance(logit, Scale) or isinstance(logit.factor, Tensor) or abs(logit.factor) > MAX_SHIFT:
        return None
    return float(logit.factor)


def forward(operands: Operands, request: SumRequest, needs: Needs) -> tuple[Tensors, Tensors]:
    """Return the log-sum-exps (n,)."""
    anchor, pool = operands.anchor, operands.pool
    kept: list[Tensor] = []
    with _without_autocast(anchor):
        if request.is_one_panel:
            kept = [_exponentials(anchor, pool, request.blocks[0], request)]
            total = kept[0].sum(1)
        else:
            total = anchor.new_zeros(anchor.shape[0])
            for block in request.blocks:
                e = _exponentials(anchor, pool, block, request)
                part(total, block.rows).add_(e.sum(1))
                if block.serves_columns and not block.diagonal:
                    part(total, block.columns).add_(e.sum(0))
                if request.keep and needs.any:
                    kept.append(e)
    return (total.log(),), (anchor, pool, total, *kept)


def backward(request: SumRequest, saved: Sequence[Tensor], gradients: Tensors, needs: Needs) -> Gradients:
    """Return the gradients of anchors and pool; None for the pool if both are one tensor."""
    anchor, pool, total, *kept = saved
    # An anchor without negatives has only zero weights, which must not become NaN.
    scale = gradients[0] * request.factor / total.clamp(min=torch.finfo(total.dtype).tiny)
    same = same_tensor(anchor, pool)
    with _without_autocast(anchor):
        if request.is_one_panel:
            return torch.mm((scale[:, None] + scale).mul_(kept[0]), anchor), None
        # Zeros, because blocks are added, and because one process's anchors need not cover all rows of the pool.
        d_anchor = torch.zeros_like(anchor) if needs.anchor else None
        d_pool = d_anchor if same else torch.zeros_like(pool) if needs.pool else None
        for number, block in enumerate(request.blocks):
            e = kept[number] if kept else _exponentials(anchor, pool, block, request)
            _add_gradients(block, e, scale, anchor, pool, d_anchor, d_pool)
    return d_anchor, None if same else d_pool


def _panels(block: MatrixBlock) -> list[slice]:
    step = max(64, _PANEL // block.width)
    return [slice(start, min(start + step, block.height)) for start in range(0, block.height, step)]


def _exponentials(anchor: Tensor, pool: Tensor, block: MatrixBlock, request: SumRequest) -> Tensor:
    """Return e^{factor · s} of a block, 0 for pairs of the same sample."""
    rows, columns = part(anchor, block.rows) * request.factor, part(pool, block.columns).T
    if block.height * block.width <= _PANEL:
        return _clear_same_samples(torch.mm(rows, columns).exp_(), block, request.selection)
    e = rows.new_empty((block.height, block.width))
    for panel in _panels(block):
        torch.mm(rows[panel], columns, out=e[panel]).exp_()
    return _clear_same_samples(e, block, request.selection)


def _clear_same_samples(e: Tensor, block: MatrixBlock, selection: Selection) -> Tensor:
    """Write 0 for the pairs of the same sample in a block, in place."""
    if selection.id_period > 1:  # ids are the numbers of rows: equal ones are on diagonals
        first, period = (block.rows.start - block.columns.start) % selection.id_period, selection.id_period
        if (
            first == 0 and block.height % period == 0 and block.width % period == 0
        ):  # whole views: one diagonal for each two of them
            e.view(block.height // period, period, block.width // period, period).diagonal(0, 1, 3).zero_()
            return e
        for offset in range(first - (first + block.height - 1) // period * period, block.width, period):
            e.diagonal(offset).fill_(0.0)
        return e
    row_id, column_id = part(selection.anchor_id, block.rows), part(selection.pool_id, block.columns)
    if e.numel() <= _PANEL:  # for so few ids, comparing all of them takes fewer operations than a search
        return e.masked_fill_(row_id[:, None] == column_id, 0.0)
    e[_same_sample(row_id, column_id)] = 0.0
    return e


def _same_sample(row_id: Tensor, column_id: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows and columns of the pairs with equal ids, by binary search: comparing all ids would take another pass."""
    ordered, order = column_id.sort()
    first = torch.searchsorted(ordered, row_id.contiguous())
    count = torch.searchsorted(ordered, row_id.contiguous(), right=True) - first
    rows = torch.arange(len(row_id)).repeat_interleave(count)
    within = torch.arange(len(rows)) - (count.cumsum(0) - count)[rows]
    return rows, order[first[rows] + within]


def _without_autocast(like: Tensor) -> AbstractContextManager[Any]:
    # Entering the context takes as long as an operation on a small batch.
    return full_precision(like) if torch.is_autocast_enabled(like.device.type) else nullcontext()


def _add_gradients(
    block: MatrixBlock,
    e: Tensor,
    scale: Tensor,
    anchor: Tensor,
    pool: Tensor,
    d_anchor: Tensor | None,
    d_pool: Tensor | None,
) -> None:
    """Add a block's contribution to the gradients of its rows and, if its columns are anchors, of its columns."""
    of_rows, of_columns, columns = (
        part(scale, block.rows)[:, None],
        part(scale, block.columns),
        part(pool, block.columns),
    )
    for panel in _panels(block):
        # ∂L/∂s of both rows that a similarity belongs to: their numbers add up before the exponential is multiplied.
        of_panel = part(of_rows, panel)
        weights = part(e, panel) * (of_panel + of_columns if block.serves_columns else of_panel)
        if d_anchor is not None:
            part(part(d_anchor, block.rows), panel).addmm_(weights, columns)
        if d_pool is not None and not block.diagonal:
            part(d_pool, block.columns).addmm_(weights.T, part(part(anchor, block.rows), panel))


CPU = Engine("cpu", forward, backward, is_repeatable=True)
