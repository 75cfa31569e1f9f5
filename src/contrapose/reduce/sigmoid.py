"""The sum of a sigmoid loss over all anchors and their negatives, with its gradient from the same pass (SigLIP).

The derivative of a softmax needs the row's sum first, and a second pass over the matrix. That of a sigmoid does not: tiles
give the loss and ∂L/∂s at once. That is exact for the sum over all anchors, whose gradient is one number; a gradient for each
anchor's own sum is left to `reduce_rows`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from contrapose.reduce import unit_kernels
from contrapose.reduce.block import Selection
from contrapose.reduce.comparisons import comparisons
from contrapose.reduce.derivatives import check_backward
from contrapose.reduce.exponent import Exponent, exponent
from contrapose.reduce.logit import Scale
from contrapose.reduce.positive_kernels import sigmoid_loss
from contrapose.reduce.reduction import operands_of
from contrapose.reduce.statistics import SoftplusSum
from contrapose.reduce.tile_kernels import sigmoid_tiles_kernel
from contrapose.reduce.tiles import BLOCK, BlockGradients, Tiles, tile_width
from contrapose.reduce.unit import RawViews, same_tensor

# Half of the usual tile: the losses, sigmoids and weights of a tile are live at once, and one program's sums should run during
# another's products.
_TILE = (64, 128, 64, 4, 3)


def sum_of_softplus(
    anchor: Tensor,
    pool: Tensor,
    selection: Selection,
    statistic: SoftplusSum,
    *,
    precision: str,
    bf16_anchor: Tensor | None = None,
) -> Tensor | None:
    """Return Σ_i Σ_j log(1 + e^{φ(s_ij) + bias}) over all anchors' negatives, a scalar; None if kernels cannot compute it."""
    logit = statistic.logit
    if isinstance(logit, Scale) and isinstance(logit.factor, Tensor) and logit.factor.ndim:  # one for each anchor
        return None
    phi = exponent(logit, 1, anchor)
    if phi is None or selection.hardest is not None or anchor.dtype != torch.float32:
        return None
    numbers = _numbers(phi.times if phi.factor is None else phi.factor[0], statistic.bias, anchor)
    operands = operands_of(anchor, pool, precision, bf16_anchor, tile_width(anchor.shape[1]))
    matrix = _Matrix(*operands, selection.contiguous(), phi, precision, same_tensor(anchor, pool))
    total: Tensor = _Total.apply(anchor, pool, numbers, matrix)
    return total


def mean_sigmoid_loss(
    raw: RawViews,
    anchor: Tensor,
    similarity: Tensor,
    selection: Selection,
    scale: float | Tensor,
    bias: float | Tensor,
    *,
    precision: str,
    bf16_anchor: Tensor | None,
) -> Tensor | None:
    """Return the mean over all rows of softplus(-(scale · s⁺ + bias)) + Σ_j softplus(scale · s_j + bias), as one node.

    `anchor` (n, d) and `similarity` (n, 1) are the unit vectors of the views and their products, as `unit_views` made them.
    None if kernels do not apply. In a batch of a few thousand, nodes of the graph take more time than their arithmetic.
    """
    if selection.hardest is not None or anchor.dtype != torch.float32:
        return None
    anchor = anchor.detach()
    operands = operands_of(anchor, anchor, precision, bf16_anchor, tile_width(anchor.shape[1]))
    matrix = _Matrix(*operands, selection.contiguous(), Exponent(), precision, True)
    loss: Tensor = _MeanLoss.apply(matrix, anchor, raw.inverse, similarity.detach(), scale, bias, *raw.views)
    return loss


def _numbers(scale: float | Tensor, bias: float | Tensor, like: Tensor) -> Tensor:
    """Return scale and bias as one tensor (2,) on the device."""
    return torch.stack([x.to(like) if isinstance(x, Tensor) else like.new_full((), x) for x in (scale, bias)])


@dataclass(frozen=True, eq=False)
class _Matrix:
    """The similarities z · pᵀ that are summed over, and their exponent without the scale."""

    z: Tensor
    p: Tensor
    selection: Selection
    phi: Exponent
    precision: str
    same: bool  # whether anchors and pool are one tensor

    def sums(
        self, numbers: Tensor, *, learned: bool, wants_rows: bool, wants_columns: bool
    ) -> tuple[Tensor, BlockGradients]:
        """Return the sums of `sigmoid_tiles_kernel`, (3,) or, unless `learned`, (1,), and the gradients of z and p."""
        blocks = list(comparisons(self.selection.runs, same=self.same, block=BLOCK))
        # Blocks on the diagonal need square tiles.
        special = self.precision == "bf16" and self.z.is_cuda and not any(block.diagonal for block in blocks)
        tiles = Tiles(self.z, self.p, self.selection, self.precision, tile=_TILE if special else None)
        gradients = BlockGradients(self.z, self.p, same=self.same, wants_rows=wants_rows, wants_columns=wants_columns)
        constants = {
            "TEMPERATURE": self.phi.temperature, "DETACH": self.phi.detach, "WEIGHTS": wants_rows or wants_columns,
            "LEARNED": learned, "NUMBERED": self.selection.id_period >= tiles.rows + tiles.columns,
        }  # fmt: skip
        totals = None
        for block in blocks:
            parts, weights = numbers.new_empty((3 if learned else 1, *tiles.grid(block))), gradients.weights(block)
            tiles(
                sigmoid_tiles_kernel, block, numbers, parts, out=weights, numbers=self.phi.numbers, **constants
            )  # fmt: skip
            totals = parts.sum((1, 2)) if totals is None else totals + parts.sum((1, 2))
            if wants_rows or wants_columns:
                gradients.add(block, weights)
        assert totals is not None
        return totals, gradients


class _Total(torch.autograd.Function):
    """Takes `anchor` and `pool` only for autograd; products read the operands of the matrix."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, pool: Tensor, numbers: Tensor, matrix: _Matrix) -> Tensor:
        wants_anchor, wants_pool, learned, _ = ctx.needs_input_grad
        totals, summed = matrix.sums(
            numbers.contiguous(), learned=learned, wants_rows=wants_anchor, wants_columns=wants_pool
        )
        gradients = summed.result(anchor.shape[1])
        ctx.present = [gradient is not None for gradient in gradients]
        ctx.save_for_backward(totals, *(gradient for gradient in gradients if gradient is not None))
        return totals[0].clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        check_backward(*gradients)
        totals, *saved = ctx.saved_tensors
        found = iter(saved)
        # The gradient was computed for an upstream gradient of 1: it is linear in that number.
        d_anchor, d_pool = (next(found) * gradients[0] if present else None for present in ctx.present)
        return d_anchor, d_pool, totals[1:] * gradients[0] if ctx.needs_input_grad[2] else None, None


class _MeanLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, matrix: _Matrix, anchor: Tensor, inverse: Tensor, similarity: Tensor, scale: float | Tensor,
        bias: float | Tensor, *views: Tensor,
    ) -> Tensor:  # fmt: skip
        *_, wants_scale, wants_bias = ctx.needs_input_grad[:6]
        wants_views = any(ctx.needs_input_grad[6:])
        numbers = _numbers(scale, bias, anchor)
        totals, summed = matrix.sums(
            numbers, learned=wants_scale or wants_bias, wants_rows=wants_views, wants_columns=wants_views
        )
        gradient, _ = summed.result(anchor.shape[1])
        of_positives, d_similarity, d_numbers = sigmoid_loss(similarity, numbers)
        ctx.save_for_backward(totals, d_similarity, d_numbers, anchor, inverse, gradient)
        ctx.dtypes = [z.dtype for z in views]
        ctx.number_types = [x.dtype if isinstance(x, Tensor) else None for x in (scale, bias)]
        return (of_positives.sum() + totals[0]) / len(anchor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        check_backward(*gradients)
        totals, d_similarity, d_numbers, anchor, inverse, gradient = ctx.saved_tensors
        learned: list[Tensor | None] = [None, None]
        if any(ctx.needs_input_grad[4:6]):
            both_numbers = (d_numbers.sum(1) + totals[1:]) * (gradients[0] / len(anchor))
            learned = [
                None if dtype is None else value.to(dtype)
                for dtype, value in zip(ctx.number_types, both_numbers, strict=True)
            ]
        d_views: list[Tensor | None] = [None for _ in ctx.dtypes]
        if gradient is not None:
            views = anchor.view(2, -1, anchor.shape[1])
            both = unit_kernels.backward(
                gradient.view(views.shape),
                d_similarity,
                views,
                inverse,
                dtype=ctx.dtypes[0],
                upstream=gradients[0],
                share=1.0 / len(anchor),
            )
            d_views = [both] if len(ctx.dtypes) == 1 else list(both.unbind())
        return None, None, None, None, *learned, *d_views
