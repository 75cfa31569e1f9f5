"""The mean cross-entropy of two views in kernels as one node of the graph, from the embeddings to the loss.

In a batch of a few thousand the device waits for the host: three nodes, of the normalisation, of the log-sum-exp and of the
cross-entropy, take longer in Python than on the device. The values are those of the three nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from contrapose.reduce import unit_kernels
from contrapose.reduce.block import Selection
from contrapose.reduce.derivatives import check_backward
from contrapose.reduce.exponent import Exponent, exponent
from contrapose.reduce.fused import prepare
from contrapose.reduce.logit import Scale
from contrapose.reduce.positive_kernels import cross_entropy
from contrapose.reduce.reduction import TOTAL, TOTAL_AND_EXPECTATION, Reduction
from contrapose.reduce.unit import RawViews


def mean_cross_entropy(
    raw: RawViews,
    anchor: Tensor,
    similarity: Tensor,
    selection: Selection,
    factor: float | Tensor,
    *,
    precision: str,
    bf16_anchor: Tensor | None,
) -> Tensor | None:
    """Return the mean of log(1 + Σ_j e^{factor · s_ij} / e^{factor · s⁺_i}) over all rows; None if kernels do not apply.

    `anchor` (n, d) and `similarity` (n, 1) are the unit vectors of the views and their products, as `unit_views` made them.
    """
    anchor = anchor.detach()
    prepared = prepare(anchor, anchor, selection, precision, bf16_anchor)
    if prepared is None:
        return None
    phi, sums = Exponent(times=factor) if isinstance(factor, float) else _learned(factor, anchor), TOTAL
    if isinstance(factor, Tensor) and factor.requires_grad:
        sums = TOTAL_AND_EXPECTATION  # Σ s e^φ / Σ e^φ is the gradient of the log-sum-exp with respect to the factor
    reduction = Reduction(phi, prepared.selection, precision, prepared.hardest, sums)
    inputs = _Inputs(anchor, raw.inverse, similarity.detach(), prepared.operands, reduction, prepared.function)
    loss: Tensor = _ViewLoss.apply(inputs, factor, *raw.views)
    return loss


def _learned(factor: Tensor, anchor: Tensor) -> Exponent:
    phi = exponent(Scale(factor), len(anchor), anchor)
    assert phi is not None
    return phi


@dataclass(frozen=True, eq=False)
class _Inputs:
    """What the forward pass reads beside the embeddings: all of it was computed from them."""

    anchor: Tensor
    inverse: Tensor
    similarity: Tensor
    operands: tuple[Tensor, Tensor]
    reduction: Reduction
    function: Any  # the autograd function of the statistics, called here without autograd


class _InnerContext:
    """Stands in for autograd's context where one function calls the forward and backward passes of another."""

    def __init__(self, needs_gradient: bool) -> None:
        self.needs_input_grad = (needs_gradient, needs_gradient, False)
        self.saved_tensors: tuple[Tensor, ...] = ()

    def save_for_backward(self, *tensors: Tensor) -> None:
        """Keep tensors for the backward pass."""
        self.saved_tensors = tensors


class _ViewLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: _Inputs, factor: float | Tensor, *views: Tensor) -> Tensor:
        _, _, *wants_views = ctx.needs_input_grad
        inner = _InnerContext(any(wants_views))
        (total,) = inputs.function.forward(
            inner, inputs.anchor, inputs.anchor, None, *inputs.operands, inputs.reduction
        )
        # Both functions of statistics save their operands, the log-sum-exp and the second statistic first. That is the
        # derivative of the log-sum-exp with respect to a learned factor.
        expectation = inner.saved_tensors[3] if ctx.needs_input_grad[1] else None
        phi = inputs.reduction.phi
        parts, weight, d_similarity, d_factor = cross_entropy(
            total, inputs.similarity, phi.times if phi.factor is None else phi.factor, expectation
        )
        # Saved, and not kept as attributes: autograd frees what is saved once the backward pass is done.
        ctx.save_for_backward(
            weight, d_similarity, d_factor, inputs.anchor, inputs.inverse, *inner.saved_tensors
        )  # fmt: skip
        inner.saved_tensors = ()
        ctx.inner, ctx.function, ctx.dtypes = inner, inputs.function, [z.dtype for z in views]
        return parts.sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        check_backward(*gradients)
        weight, d_similarity, d_factor, anchor, inverse, *kept = ctx.saved_tensors
        # Everything is linear in the upstream gradient, which is multiplied last.
        ctx.inner.saved_tensors = tuple(kept)
        d_anchor, *_ = ctx.function.backward(ctx.inner, weight)
        ctx.inner.saved_tensors = ()
        learned = d_factor.sum() * gradients[0] if ctx.needs_input_grad[1] else None
        if d_anchor is None:
            return None, learned, *[None for _ in ctx.dtypes]
        views = anchor.view(2, -1, anchor.shape[1])
        d_views = unit_kernels.backward(
            d_anchor.contiguous().view(views.shape),
            d_similarity,
            views,
            inverse,
            dtype=ctx.dtypes[0],
            upstream=gradients[0],
        )
        return None, learned, *((d_views,) if len(ctx.dtypes) == 1 else d_views.unbind())
