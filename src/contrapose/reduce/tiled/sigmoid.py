"""The sum of a sigmoid loss over all anchors and their negatives, with its gradient from the same pass (SigLIP).

The derivative of a softmax needs the row's sum first, and therefore a second pass over the matrix. The derivative of a sigmoid
does not: tiles give the loss and ∂L/∂s at once. This works for the sum over all anchors, whose upstream gradient is one number;
`reduce_rows` handles separate gradients for each anchor's sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from contrapose.reduce.block import Selection
from contrapose.reduce.engine import Engine, Gradients, Needs, Operands, Tensors
from contrapose.reduce.exponent import Exponent
from contrapose.reduce.matrix_blocks import matrix_blocks
from contrapose.reduce.tiled.kernels import sigmoid_tiles_kernel
from contrapose.reduce.tiled.launch import BLOCK, BlockGradients, TileLaunch

# Half of the usual tile: the losses, sigmoids and weights of a tile are live at once, and one program's sums should run during
# another's products.
_TILE = (64, 128, 64, 4, 3)


@dataclass(frozen=True, eq=False)
class SigmoidRequest:
    """Σ_i Σ_j log(1 + e^{scale · s_ij/τ(s_ij) + bias}) over all anchors' negatives; scale and bias are operands."""

    phi: Exponent  # without the scale
    selection: Selection
    precision: str
    width: int  # d, of the embeddings before they were padded


def forward(operands: Operands, request: SigmoidRequest, needs: Needs) -> tuple[Tensors, Tensors]:
    """Return the sum, a scalar; its gradients are computed here, for an upstream gradient of 1."""
    z, p, numbers = operands.z, operands.p, operands.numbers
    assert numbers is not None
    blocks = list(matrix_blocks(request.selection.runs, same=operands.same, block=BLOCK))
    # Blocks on the diagonal need square tiles.
    special = request.precision == "bf16" and z.is_cuda and not any(block.diagonal for block in blocks)
    launch = TileLaunch(z, p, request.selection, request.precision, tile=_TILE if special else None)
    gradients = BlockGradients(z, p, same=operands.same, wants_rows=needs.anchor, wants_columns=needs.pool)
    constants = {
        "TEMPERATURE": request.phi.temperature, "DETACH": request.phi.detach, "WEIGHTS": needs.anchor or needs.pool,
        "LEARNED": needs.learned, "NUMBERED": request.selection.id_period >= launch.rows + launch.columns,
    }  # fmt: skip
    totals = None
    for block in blocks:
        parts = numbers.new_empty((3 if needs.learned else 1, *launch.grid(block)))
        weights = gradients.weights(block)
        launch(
            sigmoid_tiles_kernel, block, numbers, parts, out=weights, numbers=request.phi.numbers, **constants
        )  # fmt: skip
        totals = parts.sum((1, 2)) if totals is None else totals + parts.sum((1, 2))
        if needs.anchor or needs.pool:
            gradients.add(block, weights)
    assert totals is not None
    present = [gradient for gradient in gradients.result(request.width) if gradient is not None]
    return (totals[0].clone(),), (totals, *present)


def backward(request: SigmoidRequest, saved: Sequence[Tensor], gradients: Tensors, needs: Needs) -> Gradients:
    """Return gradients of anchors, pool, and scale and bias (2,): those from the forward pass times the upstream gradient."""
    totals, *present = (tensor * gradients[0] for tensor in saved)
    d_anchor = present[0] if needs.anchor else None
    # The pool has no separate gradient if pool and anchors are one tensor.
    d_pool = present[-1] if needs.pool and len(present) == 1 + needs.anchor else None
    return d_anchor, d_pool, totals[1:] if needs.learned else None


SIGMOID = Engine("tiled", forward, backward)
