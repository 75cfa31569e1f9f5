"""Log-sum-exps of a small matrix on the CPU, in few passes over it.

Plain autograd reads or writes the matrix about ten times. Here e^φ takes the place of φ, needs no maximum because |φ| is
bounded, and is kept: ∂L/∂s is e^φ times a number per row. A similarity that serves both of its rows (two views of a batch,
both directions of CLIP) is computed once, and both terms of its gradient are one product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from contrapose.reduce.block import Selection
from contrapose.reduce.comparisons import Comparison, comparisons
from contrapose.reduce.exponent import MAX_SHIFT
from contrapose.reduce.logit import Scale
from contrapose.reduce.statistics import LogSumExp, Statistic
from contrapose.reduce.unit import full_precision, refuse_second_derivative, same_tensor

_PANEL = 2**18  # similarities that stay in the cache while exponential, mask and sum pass over them


def constant_scale(statistics: tuple[Statistic, ...], selection: Selection) -> float | None:
    """Return the factor of a single log-sum-exp over all negatives of φ = factor · s, |φ| ≤ 40; None for anything else."""
    if len(statistics) != 1 or not isinstance(statistics[0], LogSumExp) or selection.hardest is not None:
        return None
    logit = statistics[0].logit
    if not isinstance(logit, Scale) or isinstance(logit.factor, Tensor) or abs(logit.factor) > MAX_SHIFT:
        return None
    return float(logit.factor)


def log_sum_exp(anchor: Tensor, pool: Tensor, selection: Selection, factor: float) -> Tensor:
    """Return log Σ_j e^{factor · s_ij} over each anchor's negatives, (n,)."""
    value: Tensor = _LogSumExp.apply(anchor, pool, selection, factor)
    return value


def _panels(comparison: Comparison) -> list[slice]:
    step = max(64, _PANEL // comparison.width)
    return [slice(start, min(start + step, comparison.height)) for start in range(0, comparison.height, step)]


def _exponentials(anchor: Tensor, pool: Tensor, c: Comparison, selection: Selection, factor: float) -> Tensor:
    """Return e^{factor · s} of a block, 0 for pairs of the same sample."""
    rows, columns = anchor[c.rows] * factor, pool[c.columns].T
    e = rows.new_empty((c.height, c.width))
    for panel in _panels(c):
        torch.mm(rows[panel], columns, out=e[panel]).exp_()
    e[_same_sample(selection.anchor_id[c.rows], selection.pool_id[c.columns])] = 0.0
    return e


def _same_sample(row_id: Tensor, column_id: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows and columns of the pairs with equal ids, found by binary search: comparing all of them is a pass more."""
    ordered, order = column_id.sort()
    first = torch.searchsorted(ordered, row_id.contiguous())
    count = torch.searchsorted(ordered, row_id.contiguous(), right=True) - first
    rows = torch.arange(len(row_id)).repeat_interleave(count)
    within = torch.arange(len(rows)) - (count.cumsum(0) - count)[rows]
    return rows, order[first[rows] + within]


class _LogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, pool: Tensor, selection: Selection, factor: float) -> Tensor:
        ctx.same, ctx.factor = same_tensor(anchor, pool), factor
        ctx.comparisons = list(comparisons(selection.runs, same=ctx.same, block=2**62))
        total = anchor.new_empty(len(anchor))
        kept = []
        with full_precision(anchor):
            for c in ctx.comparisons:
                e = _exponentials(anchor, pool, c, selection, factor)
                total[c.rows] = e.sum(1)
                if c.both and not c.diagonal:
                    total[c.columns] = e.sum(0)
                kept.append(e)
        ctx.save_for_backward(anchor, pool, total, *kept)
        return total.log()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        anchor, pool, total, *kept = ctx.saved_tensors
        wants_anchor, wants_pool, *_ = ctx.needs_input_grad
        # An anchor without negatives has no weights, and must not turn its zeros into NaN.
        scale = torch.where(total > 0, gradients[0] * ctx.factor / total, 0.0)
        d_anchor = torch.empty_like(anchor) if wants_anchor else None
        # Zeros: a process's share of the anchors need not meet all rows of the pool.
        d_pool = d_anchor if ctx.same else torch.zeros_like(pool) if wants_pool else None
        with full_precision(anchor):
            for c, e in zip(ctx.comparisons, kept, strict=True):
                _add_gradients(c, e, scale, anchor, pool, d_anchor, d_pool)
        return d_anchor, None if ctx.same else d_pool, None, None


def _add_gradients(
    c: Comparison,
    e: Tensor,
    scale: Tensor,
    anchor: Tensor,
    pool: Tensor,
    d_anchor: Tensor | None,
    d_pool: Tensor | None,
) -> None:
    """Write a block's part of the gradients: the rows' own and, if its columns are anchors, theirs too."""
    of_rows, columns = scale[c.rows, None], pool[c.columns]
    for panel in _panels(c):
        # ∂L/∂s of both rows that a similarity belongs to: their numbers add up before the exponential is multiplied.
        both = of_rows[panel] + scale[c.columns] if c.both else of_rows[panel]
        weights = e[panel] * both
        if d_anchor is not None:
            torch.mm(weights, columns, out=d_anchor[c.rows][panel])
        if d_pool is not None and not c.diagonal:
            part = torch.mm(weights.T, anchor[c.rows][panel])
            d_pool[c.columns] = part if panel.start == 0 else d_pool[c.columns] + part
