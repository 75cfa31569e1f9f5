"""A softmax's log-sum-exp and the soft targets of a guide, from the tiles of two similarity matrices at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from contrapose.reduce.block import Selection
from contrapose.reduce.engine import Engine, Gradients, Needs, Operands, Tensors
from contrapose.reduce.exponent import Exponent
from contrapose.reduce.matrix_blocks import MatrixBlock, matrix_blocks
from contrapose.reduce.request import LOG2E
from contrapose.reduce.tiled.launch import BLOCK, BlockGradients, TileLaunch
from contrapose.reduce.tiled.soft_kernels import sum_soft_tiles_kernel, weigh_soft_tiles_kernel
from contrapose.reduce.unit import same_tensor

# Half of a square tile, for a guide of another width: one program's sums should run during another's products.
_HALF_TILE = (64, 128, 64, 4, 4)
_FORWARD_BLOCK = 2 * BLOCK  # tile sums take less memory than ∂L/∂s, so blocks can be larger
# Planes that kernels store: Σ e^φ, Σ s e^φ, Σ w, Σ w s/τ, Σ w log w, and the largest exponent in base 2
TOTAL, SIMILARITY, WEIGHT, ATTRACTION, ENTROPY, LARGEST = range(6)


@dataclass(frozen=True, eq=False)
class SoftRequest:
    """log Σ_j e^{φ(s_ij)}, and log Σ_j w_ij, Σ_j w_ij φ(s_ij) / Σ w and Σ_j w_ij log w_ij / Σ w for a guide's weights."""

    phi: Exponent
    selection: Selection
    precision: str
    width: int  # d, of the embeddings before they were padded
    guide: Operands
    temperature: (
        float | None
    )  # of the softmax that makes weights from the guide's similarities; None: these are the weights
    bound: float  # upper bound of the logarithm of a weight, if there is a softmax
    with_entropy: bool

    @property
    def constants(self) -> dict[str, Any]:
        """Return the compile-time arguments that both kernels share."""
        return {**self.phi.constants, "SOFTMAX": self.temperature is not None}

    @property
    def weight_shift(self) -> float:
        """Return the constant shift of the logarithms of the weights; 0 if there is none."""
        return 0.0 if self.temperature is None else self.bound

    @property
    def numbers(self) -> tuple[float, ...]:
        """Return the kernels' scalar arguments, with exponents in base 2."""
        phi, sharpness = self.phi, 1.0 if self.temperature is None else 1.0 / self.temperature
        shifts = LOG2E * phi.shift, LOG2E * sharpness, LOG2E * self.weight_shift
        return LOG2E * phi.times, *phi.numbers, *shifts

    def factors(self) -> Tensor | float:
        """Return what s / τ(s) is multiplied by: one number, or one per anchor."""
        return self.phi.times if self.phi.factor is None else self.phi.factor.detach()


def forward(operands: Operands, request: SoftRequest, needs: Needs) -> tuple[Tensors, Tensors]:
    """Return log-sum-exps (n,) and the three numbers of `SoftSums` (n, 3)."""
    z, p = operands.z, operands.p
    factors = _factors(request, z)
    totals = z.new_zeros((LARGEST + 1, len(z)), dtype=torch.float32)
    totals[LARGEST] = -torch.inf
    blocks = list(matrix_blocks(request.selection.runs, same=operands.same, block=_FORWARD_BLOCK))
    launch = _launch(request, z, p, blocks)
    flags: dict[str, Any] = {"LEARNED": needs.learned, "ENTROPY": request.with_entropy}
    for block in blocks:
        down, across = launch.grid(block)
        of_rows = of_columns = totals.new_zeros((LARGEST + 1, across, block.height))
        both = block.serves_columns and not block.diagonal
        if both:
            of_columns = totals.new_zeros((LARGEST + 1, down, block.width))
        launch(
            sum_soft_tiles_kernel, block, factors, of_rows, of_columns, numbers=request.numbers, **request.constants, **flags
        )  # fmt: skip
        _add(totals[:, block.rows], of_rows, bounded=request.phi.is_bounded)
        if both:
            _add(totals[:, block.columns], of_columns, bounded=request.phi.is_bounded)
    return _results(request, totals, (z, p, factors))


def _add(totals: Tensor, parts: Tensor, *, bounded: bool) -> None:
    """Add sums of tiles, (planes, tiles, anchors), to the totals of these anchors, (planes, anchors)."""
    if bounded:
        totals[:LARGEST] += parts[:LARGEST].sum(1)
        return
    largest = torch.maximum(totals[LARGEST], parts[LARGEST].amax(0))
    # An anchor without negatives so far: -inf - (-inf) would be NaN.
    finite = largest.masked_fill(largest == -torch.inf, 0.0)
    earlier, weight = torch.exp2(totals[LARGEST] - finite), torch.exp2(parts[LARGEST] - finite)
    totals[:WEIGHT] = totals[:WEIGHT] * earlier + (parts[:WEIGHT] * weight).sum(1)
    totals[WEIGHT:LARGEST] += parts[WEIGHT:LARGEST].sum(1)
    totals[LARGEST] = largest


def _results(request: SoftRequest, totals: Tensor, operands: Tensors) -> tuple[Tensors, Tensors]:
    """Turn sums into statistics, and return them with what the backward pass needs."""
    largest = LOG2E * request.phi.shift if request.phi.is_bounded else totals[LARGEST]
    lse = (totals[TOTAL].log2() + largest) * math.log(2)
    # Zero for an anchor without negatives; NaN is kept.
    inverse, inverse_weight = (torch.where(totals[k] == 0, 0.0, 1 / totals[k]) for k in (TOTAL, WEIGHT))
    attraction = totals[ATTRACTION] * inverse_weight
    sums = torch.stack(
        [
            totals[WEIGHT].log() + request.weight_shift,
            attraction * request.factors(),
            totals[ENTROPY] * inverse_weight,
        ],
        1,
    )
    return (lse, sums), (*operands, lse, inverse, totals[SIMILARITY] * inverse, attraction, inverse_weight)


def backward(request: SoftRequest, saved: Sequence[Tensor], gradients: Tensors, needs: Needs) -> Gradients:
    """Return the gradients of anchors, pool and learned factor."""
    z, p, factors, lse, inverse, similarity, attraction, inverse_weight = saved
    of_total, of_attraction = gradients[0], gradients[1][:, 1]
    d_anchor = d_pool = None
    if needs.anchor or needs.pool:
        a, b = of_total * request.factors(), of_attraction * request.factors() * inverse_weight
        if request.phi.is_bounded:  # the kernel computes e^{φ - shift} instead of the softmax weight e^{φ - lse}
            a = a * inverse
        summed = BlockGradients(z, p, same=same_tensor(z, p), wants_rows=needs.anchor, wants_columns=needs.pool)
        blocks = list(matrix_blocks(request.selection.runs, same=summed.same, block=BLOCK))
        launch, buffers = _launch(request, z, p, blocks), (factors, lse, a.contiguous(), b.contiguous())
        for block in blocks:
            weights = summed.weights(block)
            launch(
                weigh_soft_tiles_kernel, block, *buffers, out=weights, numbers=request.numbers, **request.constants
            )  # fmt: skip
            summed.add(block, weights)
        d_anchor, d_pool = summed.result(request.width)
    d_factor = of_total * similarity + of_attraction * attraction if needs.learned else None
    return d_anchor, d_pool, d_factor


def _factors(request: SoftRequest, z: Tensor) -> Tensor:
    """Return the factor of each anchor; any tensor if there is a constant shift, since kernels do not read it."""
    if request.phi.is_bounded:
        return z
    factors = request.factors()
    if isinstance(factors, Tensor):
        return factors.contiguous()
    return z.new_full((len(z),), factors, dtype=torch.float32)


def _launch(request: SoftRequest, z: Tensor, p: Tensor, blocks: Sequence[MatrixBlock]) -> TileLaunch:
    guide = (request.guide.z, request.guide.p)
    # Blocks on the diagonal need square tiles.
    halves = z.shape[1] != guide[0].shape[1] and not any(block.diagonal for block in blocks)
    tile = _HALF_TILE if halves and request.precision == "bf16" and z.is_cuda else None
    return TileLaunch(z, p, request.selection, request.precision, guide=guide, tile=tile)


SOFT = Engine("tiled", forward, backward)
