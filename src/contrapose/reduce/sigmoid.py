"""The sum of a sigmoid loss over all anchors and their negatives, with its gradient from the same pass (SigLIP).

The derivative of a softmax needs the row's sum first, and a second pass over the matrix. That of a sigmoid does not: tiles
give the loss and ∂L/∂s at once. That is exact for the sum over all anchors, whose gradient is one number; a gradient for each
anchor's own sum is left to `reduce_rows`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from contrapose.reduce.block import Selection
from contrapose.reduce.comparisons import comparisons
from contrapose.reduce.derivatives import check_backward
from contrapose.reduce.exponent import Exponent, exponent
from contrapose.reduce.logit import Scale
from contrapose.reduce.reduction import operands_of
from contrapose.reduce.statistics import SoftplusSum
from contrapose.reduce.tile_kernels import sigmoid_tiles_kernel
from contrapose.reduce.tiles import BLOCK, BlockGradients, Tiles, tile_width
from contrapose.reduce.unit import same_tensor

# Half of the usual tile, with registers for three programs on a multiprocessor: the losses, sigmoids and weights of a tile are
# live at once, and one program's sums should run during another's products.
_TILE, _REGISTERS = (64, 128, 64, 4, 3), 168


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
    scale = phi.times if phi.factor is None else phi.factor[0]
    bias = statistic.bias.to(anchor) if isinstance(statistic.bias, Tensor) else statistic.bias
    numbers = torch.stack([x if isinstance(x, Tensor) else anchor.new_full((), x) for x in (scale, bias)])
    operands = operands_of(anchor, pool, precision, bf16_anchor, tile_width(anchor.shape[1]))
    total: Tensor = _Total.apply(anchor, pool, numbers, *operands, (phi, selection.contiguous(), precision))
    return total


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, pool: Tensor, numbers: Tensor, z: Tensor, p: Tensor,
        settings: tuple[Exponent, Selection, str],
    ) -> Tensor:  # fmt: skip
        phi, selection, precision = settings
        wants_anchor, wants_pool, *_ = ctx.needs_input_grad
        same, wants = same_tensor(anchor, pool), wants_anchor or wants_pool
        blocks = list(comparisons(selection.runs, same=same, block=BLOCK))
        # Blocks on the diagonal need square tiles.
        special = precision == "bf16" and not any(block.diagonal for block in blocks)
        tile, registers = (_TILE, _REGISTERS) if special and z.is_cuda else (None, None)
        tiles = Tiles(z, p, (selection.anchor_id, selection.pool_id), precision, tile=tile, registers=registers)
        summed = BlockGradients(z, p, same=same, wants_rows=wants_anchor, wants_columns=wants_pool)
        totals = anchor.new_zeros(3)
        learned = ctx.needs_input_grad[2]
        constants = {"TEMPERATURE": phi.temperature, "DETACH": phi.detach, "WEIGHTS": wants, "LEARNED": learned}
        for block in blocks:
            parts = totals.new_empty((3 if learned else 1, *tiles.grid(block)))
            weights = summed.weights(block)
            tiles(
                sigmoid_tiles_kernel, block, numbers.contiguous(), parts, out=weights, numbers=phi.numbers, **constants
            )
            totals[: len(parts)] += parts.sum((1, 2))
            if wants:
                summed.add(block, weights)
        ctx.same = same
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
        return d_anchor, d_pool, totals[1:] * gradients[0] if ctx.needs_input_grad[2] else None, None, None, None
