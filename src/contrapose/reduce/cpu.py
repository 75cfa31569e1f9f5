"""Log-sum-exps of one loss's usual form on the CPU, φ = s / τ with τ a number, in few passes over the matrix.

Plain autograd reads or writes the matrix about ten times. Here e^φ takes the place of φ and needs no maximum, because |φ| is
bounded; ∂L/∂s is e^φ times a number per row. A similarity that serves both of its rows (two views of a batch, both directions of
CLIP) is computed once, and both terms of its gradient are one product. A small matrix of e^φ is kept for the backward pass, a
large one is computed again, block by block. The mean cross-entropy of two views is one node of the graph: in a small batch the
nodes of the normalisation, of the log-sum-exp and of the cross-entropy cost as much as their arithmetic.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from contrapose.reduce.block import Selection
from contrapose.reduce.comparisons import Comparison, comparisons
from contrapose.reduce.derivatives import check_backward
from contrapose.reduce.exponent import MAX_SHIFT
from contrapose.reduce.logit import Logit, Scale
from contrapose.reduce.reduction import part
from contrapose.reduce.statistics import LogSumExp, Statistic, softplus
from contrapose.reduce.unit import RawViews, full_precision, same_tensor, unit_views_backward_

_PANEL = 2**18  # similarities that stay in the cache while exponential, mask and sum pass over them
_BLOCK = 2048  # rows and columns of a block of a matrix that is not kept


def constant_scale(statistics: tuple[Statistic, ...], selection: Selection) -> float | None:
    """Return the factor of a single log-sum-exp over all negatives of φ = factor · s, |φ| ≤ 40; None for anything else."""
    if len(statistics) != 1 or not isinstance(statistics[0], LogSumExp) or selection.hardest is not None:
        return None
    return bounded_factor(statistics[0].logit)


def bounded_factor(logit: Logit) -> float | None:
    """Return the factor of φ = factor · s, |φ| ≤ 40; None for any other logit."""
    if not isinstance(logit, Scale) or isinstance(logit.factor, Tensor) or abs(logit.factor) > MAX_SHIFT:
        return None
    return float(logit.factor)


def log_sum_exp(anchor: Tensor, pool: Tensor, selection: Selection, factor: float, *, keep: bool) -> Tensor:
    """Return log Σ_j e^{factor · s_ij} over each anchor's negatives, (n,); `keep` the matrix for the backward pass."""
    value: Tensor = _LogSumExp.apply(_Sums.of(anchor, pool, selection, factor, keep=keep), anchor, pool)
    return value


def mean_cross_entropy(
    raw: RawViews, anchor: Tensor, similarity: Tensor, selection: Selection, factor: float, *, keep: bool
) -> Tensor:
    """Return the mean of log(1 + Σ_j e^{factor · s_ij} / e^{factor · s⁺_i}) over all rows.

    `anchor` (n, d) and `similarity` (n, 1) are the unit vectors of the views and their products, as `unit_views` made them.
    """
    anchor, similarity, n = anchor.detach(), similarity.detach(), anchor.shape[0]
    loss: Tensor
    if keep and n * n <= _PANEL and selection.runs == [(slice(0, n), slice(0, n))]:
        loss = _PanelLoss.apply(selection, factor, anchor, raw.inverse, similarity, *raw.views)
    else:
        sums = _Sums.of(anchor, anchor, selection, factor, keep=keep)
        loss = _ViewLoss.apply(sums, anchor, raw.inverse, similarity, *raw.views)
    return loss


def _panels(comparison: Comparison) -> list[slice]:
    step = max(64, _PANEL // comparison.width)
    return [slice(start, min(start + step, comparison.height)) for start in range(0, comparison.height, step)]


def _exponentials(anchor: Tensor, pool: Tensor, c: Comparison, selection: Selection, factor: float) -> Tensor:
    """Return e^{factor · s} of a block, 0 for pairs of the same sample."""
    rows, columns = part(anchor, c.rows) * factor, part(pool, c.columns).T
    if c.height * c.width <= _PANEL:
        return _clear_same_samples(torch.mm(rows, columns).exp_(), c, selection)
    e = rows.new_empty((c.height, c.width))
    for panel in _panels(c):
        torch.mm(rows[panel], columns, out=e[panel]).exp_()
    return _clear_same_samples(e, c, selection)


def _clear_same_samples(e: Tensor, c: Comparison, selection: Selection) -> Tensor:
    """Write 0 for the pairs of the same sample in a block, in place."""
    if selection.id_period > 1:  # ids are the numbers of rows: equal ones are on diagonals
        first, period = (c.rows.start - c.columns.start) % selection.id_period, selection.id_period
        if (
            first == 0 and c.height % period == 0 and c.width % period == 0
        ):  # whole views: one diagonal for each two of them
            e.view(c.height // period, period, c.width // period, period).diagonal(0, 1, 3).zero_()
            return e
        for offset in range(first - (first + c.height - 1) // period * period, c.width, period):
            e.diagonal(offset).fill_(0.0)
        return e
    row_id, column_id = part(selection.anchor_id, c.rows), part(selection.pool_id, c.columns)
    if e.numel() <= _PANEL:  # a search for equal ids has more operations than a pass over so few
        return e.masked_fill_(row_id[:, None] == column_id, 0.0)
    e[_same_sample(row_id, column_id)] = 0.0
    return e


def _same_sample(row_id: Tensor, column_id: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows and columns of the pairs with equal ids, found by binary search: comparing all of them is a pass more."""
    ordered, order = column_id.sort()
    first = torch.searchsorted(ordered, row_id.contiguous())
    count = torch.searchsorted(ordered, row_id.contiguous(), right=True) - first
    rows = torch.arange(len(row_id)).repeat_interleave(count)
    within = torch.arange(len(rows)) - (count.cumsum(0) - count)[rows]
    return rows, order[first[rows] + within]


@dataclass(frozen=True, eq=False)
class _Sums:
    """Σ_j e^{factor · s_ij} over each anchor's negatives, and its gradient."""

    selection: Selection
    factor: float
    comparisons: list[Comparison]
    keep: bool  # whether the matrix is kept for the backward pass

    @classmethod
    def of(cls, anchor: Tensor, pool: Tensor, selection: Selection, factor: float, *, keep: bool) -> _Sums:
        """Divide the matrix into blocks."""
        block = 2**62 if keep else _BLOCK
        found = comparisons(selection.runs, same=same_tensor(anchor, pool), block=block)
        return cls(selection, factor, list(found), keep)

    def forward(self, anchor: Tensor, pool: Tensor, *, wants_gradient: bool) -> tuple[Tensor, list[Tensor]]:
        """Return the sums (n,), and the blocks of e^φ that are kept."""
        total, kept = anchor.new_zeros(anchor.shape[0]), []
        with _without_autocast(anchor):
            for c in self.comparisons:
                e = _exponentials(anchor, pool, c, self.selection, self.factor)
                part(total, c.rows).add_(e.sum(1))
                if c.both and not c.diagonal:
                    part(total, c.columns).add_(e.sum(0))
                if self.keep and wants_gradient:
                    kept.append(e)
        return total, kept

    def backward(
        self, gradient: Tensor, anchor: Tensor, pool: Tensor, total: Tensor, kept: list[Tensor],
        *, wants_anchor: bool, wants_pool: bool,
    ) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
        """Return the gradients of anchors and pool, given that of the sums' logarithms (n,); one tensor has one gradient."""
        # An anchor without negatives has no weights, and must not turn its zeros into NaN.
        scale = gradient * self.factor / total.clamp(min=torch.finfo(total.dtype).tiny)
        same = same_tensor(anchor, pool)
        # Zeros: blocks add up, and a process's share of the anchors need not meet all rows of the pool.
        d_anchor = torch.zeros_like(anchor) if wants_anchor else None
        d_pool = d_anchor if same else torch.zeros_like(pool) if wants_pool else None
        with _without_autocast(anchor):
            for number, c in enumerate(self.comparisons):
                e = kept[number] if kept else _exponentials(anchor, pool, c, self.selection, self.factor)
                _add_gradients(c, e, scale, anchor, pool, d_anchor, d_pool)
        return d_anchor, None if same else d_pool


def _without_autocast(like: Tensor) -> AbstractContextManager[Any]:
    # Entering the context takes as long as an operation on a small batch.
    return full_precision(like) if torch.is_autocast_enabled(like.device.type) else nullcontext()


class _LogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sums: _Sums, anchor: Tensor, pool: Tensor) -> Tensor:
        total, kept = sums.forward(anchor, pool, wants_gradient=any(ctx.needs_input_grad))
        ctx.sums = sums
        ctx.save_for_backward(anchor, pool, total, *kept)
        return total.log()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        check_backward(*gradients)
        anchor, pool, total, *kept = ctx.saved_tensors
        _, wants_anchor, wants_pool = ctx.needs_input_grad
        d_anchor, d_pool = ctx.sums.backward(
            gradients[0], anchor, pool, total, kept, wants_anchor=wants_anchor, wants_pool=wants_pool
        )
        return None, d_anchor, d_pool


class _ViewLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sums: _Sums, anchor: Tensor, inverse: Tensor, similarity: Tensor, *views: Tensor) -> Tensor:
        total, kept = sums.forward(anchor, anchor, wants_gradient=any(ctx.needs_input_grad))
        gap = torch.sub(total.log()[:, None], similarity, alpha=sums.factor)
        ctx.sums, ctx.dtypes = sums, [z.dtype for z in views]
        ctx.save_for_backward(gap, anchor, inverse, total, *kept)
        return softplus(gap).mean()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        check_backward(*gradients)
        gap, anchor, inverse, total, *kept = ctx.saved_tensors
        weight = torch.sigmoid(gap).mul_(gradients[0] / gap.shape[0])
        d_anchor, _ = ctx.sums.backward(weight[:, 0], anchor, anchor, total, kept, wants_anchor=True, wants_pool=False)
        unit_vectors = anchor.view(2, -1, anchor.shape[1])
        d_views = unit_views_backward_(
            d_anchor.view(unit_vectors.shape), weight.mul_(-ctx.sums.factor), unit_vectors, inverse
        )
        return None, None, None, None, *_of_views(d_views, ctx.dtypes)


class _PanelLoss(torch.autograd.Function):
    """The same as `_ViewLoss` for one panel: with nothing to add up there are half as many operations around the products."""

    @staticmethod
    def forward(
        ctx: Any,
        selection: Selection,
        factor: float,
        anchor: Tensor,
        inverse: Tensor,
        similarity: Tensor,
        *views: Tensor,
    ) -> Tensor:
        whole = slice(0, anchor.shape[0])
        with _without_autocast(anchor):
            e = _exponentials(anchor, anchor, Comparison(whole, whole, both=True, diagonal=True), selection, factor)
        total = e.sum(1, keepdim=True)
        gap = torch.sub(total.log(), similarity, alpha=factor)
        ctx.factor, ctx.dtypes = factor, [z.dtype for z in views]
        ctx.save_for_backward(gap, anchor, inverse, total, e)
        return softplus(gap).mean()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        check_backward(*gradients)
        gap, anchor, inverse, total, e = ctx.saved_tensors
        weight = torch.sigmoid(gap).mul_(gradients[0] / gap.shape[0]).mul_(ctx.factor)
        scale = weight / total.clamp(min=torch.finfo(total.dtype).tiny)
        with _without_autocast(anchor):
            d_anchor = torch.mm((scale + scale.view(-1)).mul_(e), anchor)
        views = anchor.view(2, -1, anchor.shape[1])
        d_views = unit_views_backward_(d_anchor.view(views.shape), weight.neg_(), views, inverse)
        return None, None, None, None, None, *_of_views(d_views, ctx.dtypes)


def _of_views(d_views: Tensor, dtypes: list[torch.dtype]) -> list[Tensor]:
    """Return the gradient of two views (2, m, d) as that of the inputs they came from: one tensor, or two."""
    parts = [d_views] if len(dtypes) == 1 else d_views.unbind()
    return [d_view.to(dtype) for d_view, dtype in zip(parts, dtypes, strict=True)]


def _add_gradients(
    c: Comparison,
    e: Tensor,
    scale: Tensor,
    anchor: Tensor,
    pool: Tensor,
    d_anchor: Tensor | None,
    d_pool: Tensor | None,
) -> None:
    """Add a block's part of the gradients: the rows' own and, if its columns are anchors, theirs too."""
    of_rows, of_columns, columns = part(scale, c.rows)[:, None], part(scale, c.columns), part(pool, c.columns)
    for panel in _panels(c):
        # ∂L/∂s of both rows that a similarity belongs to: their numbers add up before the exponential is multiplied.
        of_panel = part(of_rows, panel)
        weights = part(e, panel) * (of_panel + of_columns if c.both else of_panel)
        if d_anchor is not None:
            part(part(d_anchor, c.rows), panel).addmm_(weights, columns)
        if d_pool is not None and not c.diagonal:
            part(d_pool, c.columns).addmm_(weights.T, part(part(anchor, c.rows), panel))
