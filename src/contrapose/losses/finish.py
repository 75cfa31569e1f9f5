"""Check the input of an objective, and reduce one value per anchor to a loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from contrapose.pairs import AnyPairs, Pairs
from contrapose.reduce import Logit, Scale, softplus
from contrapose.reduce.derivatives import check_backward
from contrapose.validate import check_choice

REDUCTIONS = ("mean", "sum", "none")


def finish(values: Tensor, reduction: str) -> Tensor:
    """Reduce over anchors by "mean" or "sum", or return one value per anchor (n,) ("none"); average values (n, k) over k."""
    check_choice("reduction", reduction, *REDUCTIONS)
    if reduction == "mean":
        return values.mean()
    per_anchor = values if values.ndim == 1 else values.mean(1)
    return per_anchor.sum() if reduction == "sum" else per_anchor


def log_sum_exp(positives: Tensor, *totals: Tensor) -> Tensor:
    """Add log-sum-exps (n,) to the positives (n, k); the log-sum-exp of an anchor without such candidates is -inf."""
    # All terms at once, since the positives are finite: the gradient of a log-sum-exp of only -inf would be NaN.
    return torch.cat([positives, *(total[:, None] for total in totals)], 1).logsumexp(1)


def cross_entropy(pairs: AnyPairs, total: Tensor, logit: Logit, reduction: str) -> Tensor:
    """Reduce -log e^{φ(s⁺)} / (e^{φ(s⁺)} + e^total) = softplus(total - φ(s⁺)), with total (n,) the log-sum of negatives."""
    positives = pairs.positives()
    factor = logit.factor if isinstance(logit, Scale) else None
    # One node of the graph, with first derivatives only; similarity values may need second derivatives.
    if reduction == "mean" and isinstance(factor, float) and isinstance(pairs, Pairs):
        mean: Tensor = _MeanCrossEntropy.apply(total, positives, factor)
        return mean
    return finish(softplus(total[:, None] - logit(positives)), reduction)


class _MeanCrossEntropy(torch.autograd.Function):
    """The mean of softplus(total - factor · s⁺) as one node: in a small batch, each node costs more than its arithmetic."""

    @staticmethod
    def forward(ctx: Any, total: Tensor, positives: Tensor, factor: float) -> Tensor:
        gap = torch.sub(total[:, None], positives, alpha=factor)
        ctx.save_for_backward(gap)
        ctx.factor = factor
        return softplus(gap).mean()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        check_backward(*gradients)
        (gap,) = ctx.saved_tensors
        weight = torch.sigmoid(gap).mul_(gradients[0] / gap.numel())
        return weight[:, 0] if weight.shape[1] == 1 else weight.sum(1), weight * -ctx.factor, None
