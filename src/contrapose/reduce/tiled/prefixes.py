"""Log-sum-exps of several prefixes of the embeddings, from one pass over the tiles of their similarity matrices (Matryoshka).

With rows x and y, the similarity of a prefix is Σ_{k < width} x_k y_k / (‖x[:width]‖ ‖y[:width]‖). The sum of a longer prefix
continues that of a shorter one, so that all similarities cost as much as those of the longest prefix. In the backward pass, a
coordinate has the gradient of all prefixes to which it belongs: a kernel adds up ∂L/∂s of these prefixes, times the inverse
norms, before the matrix products. The gradient through the norms follows from one number for each row and prefix, Σ ∂L/∂s · s.
"""

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
from contrapose.reduce.tiled.launch import BLOCK, BlockGradients, Tile, TileLaunch
from contrapose.reduce.tiled.prefix_kernels import sum_prefix_tiles_kernel, weigh_prefix_tiles_kernel
from contrapose.reduce.unit import same_tensor

_ROUNDED = 2**24  # coordinates whose rounding errors are in memory at a time
_FORWARD_BLOCK = 2 * BLOCK  # tile sums take less memory than ∂L/∂s, so blocks can be larger
# Half tiles, so that the sums of one program run during the products of another; wider numbers need smaller ones.
_TILES: dict[str, Tile] = {
    "bf16": (64, 128, 64, 4, 3),
    "tf32": (64, 64, 32, 4, 3),
    "tf32x3": (64, 64, 32, 4, 2),
    "ieee": (64, 64, 32, 4, 2),
}
_FORWARD_TILES = {**_TILES, "bf16": (128, 128, 64, 4, 3), "tf32": (128, 128, 32, 4, 3)}


@dataclass(frozen=True, eq=False)
class PrefixRequest:
    """log Σ_j e^{φ(s_ij)} over the negatives, for the similarities s of each prefix; φ is bounded."""

    phi: Exponent
    selection: Selection
    precision: str
    width: int  # d, of the embeddings before they were padded
    widths: tuple[int, ...]  # of the prefixes, ascending

    @property
    def segments(self) -> list[slice]:
        """Return the coordinates that each prefix adds to the one before."""
        return [slice(start, end) for start, end in zip((0, *self.widths[:-1]), self.widths, strict=True)]

    @property
    def numbers(self) -> tuple[float, ...]:
        """Return the kernels' scalar arguments, with exponents in base 2."""
        return LOG2E * self.phi.times, *self.phi.numbers, LOG2E * self.phi.shift

    def launch(self, z: Tensor, p: Tensor, tile: Tile) -> TileLaunch:
        """Return the tiles of the products of z and p, whose steps end where prefixes end."""
        rows, columns, depth, warps, stages = tile
        depth = math.gcd(depth, *self.widths)
        return TileLaunch(z, p, self.selection, self.precision, tile=(rows, columns, depth, warps, stages))

    def constants(self, launch: TileLaunch) -> dict[str, Any]:
        """Return the compile-time arguments that both kernels share."""
        return {
            "TEMPERATURE": self.phi.temperature, "ENDS": self.widths, "PREFIXES": len(self.widths),
            "NUMBERED": self.selection.id_period >= launch.rows + launch.columns,
        }  # fmt: skip


def forward(operands: Operands, request: PrefixRequest, needs: Needs) -> tuple[Tensors, Tensors]:
    """Return the log-sum-exps of each prefix, (n,) each."""
    z, p = operands.z, operands.p
    z_inverse = _inverse_lengths(operands.anchor, request.segments)
    p_inverse = z_inverse if operands.same else _inverse_lengths(operands.pool, request.segments)
    totals = z.new_zeros((len(request.widths), len(z)), dtype=torch.float32)
    launch = request.launch(z, p, _FORWARD_TILES[request.precision])
    constants = request.constants(launch)
    for block in matrix_blocks(request.selection.runs, same=operands.same, block=_FORWARD_BLOCK):
        of_rows, of_columns = _parts(launch, block, totals, both=block.serves_columns)
        launch(
            sum_prefix_tiles_kernel, block, z_inverse, p_inverse, of_rows, of_columns, numbers=request.numbers, **constants
        )  # fmt: skip
        totals[:, block.rows] += of_rows.sum(1)
        if block.serves_columns:
            totals[:, block.columns] += of_columns.sum(1)
    lse = totals.log() + request.phi.shift
    inverse = torch.where(totals == 0, 0.0, 1 / totals)  # 0 for an anchor without negatives
    return tuple(lse.unbind()), (z, p, operands.anchor, operands.pool, z_inverse, p_inverse, inverse)


def _inverse_lengths(rows: Tensor, segments: Sequence[slice]) -> Tensor:
    """Return 1 / ‖row[:width]‖ of each prefix, (n, prefixes); 0 for a prefix without direction."""
    parts = [torch.linalg.vector_norm(rows.detach()[:, segment], dim=1) for segment in segments]
    length = torch.stack(parts, 1).square_().cumsum(1).sqrt_()
    return torch.threshold(length, 1e-12, torch.inf).reciprocal_()


def _parts(launch: TileLaunch, block: MatrixBlock, totals: Tensor, *, both: bool) -> tuple[Tensor, Tensor]:
    """Return buffers for sums of tiles, (prefixes, tiles, rows) and (prefixes, tiles, columns), which are one if not `both`."""
    down, across = launch.grid(block)
    # Tiles below the diagonal are left out.
    make = totals.new_zeros if block.diagonal else totals.new_empty
    of_rows = make((len(totals), across, block.height))
    return of_rows, make((len(totals), down, block.width)) if both else of_rows


def backward(request: PrefixRequest, saved: Sequence[Tensor], gradients: Tensors, needs: Needs) -> Gradients:
    """Return the gradients of anchors and pool."""
    z, p, anchor, pool, z_inverse, p_inverse, inverse = saved
    prefixes, same = len(request.widths), same_tensor(z, p)
    summed = BlockGradients(z, p, same=same, wants_rows=needs.anchor, wants_columns=needs.pool)
    # The kernel computes e^{φ - shift} instead of the softmax weight e^{φ - lse}.
    a = (torch.stack(gradients) * inverse).mul_(request.phi.times).T.contiguous()
    radial = torch.zeros_like(inverse)  # Σ ∂L/∂s · s of the rows
    radial_of_columns = radial if same else inverse.new_zeros((prefixes, len(p)))
    launch = request.launch(z, p, _TILES[request.precision])
    tiles = [(launch.rows, launch.columns // 2), (launch.columns // 2, launch.rows)]  # and transposed ones
    constants = request.constants(launch) | {"DETACH": request.phi.detach, "COLUMN_SUMS": needs.pool or same}
    # Smaller blocks, so that the weights of all prefixes take as much memory as those of one loss.
    length = max(1, int(BLOCK / prefixes**0.5) // launch.columns) * launch.columns
    for block in matrix_blocks(request.selection.runs, same=same, block=length):
        height = -(-block.height // launch.columns) * launch.columns
        weights = summed.weights(block, rows=prefixes * height)
        of_rows, of_columns = _parts(launch, block, radial, both=needs.pool or same)
        launch(
            weigh_prefix_tiles_kernel, block, z_inverse, p_inverse, a, of_rows, of_columns,
            out=weights, out_tiles=tiles, numbers=request.numbers, **constants,
        )  # fmt: skip
        for k, segment in enumerate(request.segments):
            summed.add(block, weights[k * height : k * height + block.height], segment)
        radial[:, block.rows] += of_rows.sum(1)
        if needs.pool or same:
            radial_of_columns[:, block.columns] += of_columns.sum(1)
    level = a.abs().mean(0)  # of each prefix's weights
    if summed.of_rows is not None:
        radial -= _of_rounding(summed.of_rows, anchor, z, z_inverse * level, request)
        _finish(summed.of_rows, anchor, z_inverse, radial, request.segments)
    if summed.of_columns is not None and not same:
        radial_of_columns -= _of_rounding(summed.of_columns, pool, p, p_inverse * level, request)
        _finish(summed.of_columns, pool, p_inverse, radial_of_columns, request.segments)
    return summed.result(request.width)


def _of_rounding(total: Tensor, rows: Tensor, rounded: Tensor, shares: Tensor, request: PrefixRequest) -> Tensor:
    """Return what rounding the rows added to Σ ∂L/∂s · s of each prefix, (prefixes, n), from the products' gradient `total`.

    A row is multiplied by many others, whose rounding errors cancel, but its own error does not cancel. Without this term, the
    gradient's error would be up to twice that of separate passes. `total` is the sum over all prefixes that have a coordinate.
    Each gets a part in proportion to its share, (n, prefixes): exact if the same mean negative repels the row in all of them.
    """
    added = total.new_zeros((len(request.widths), len(rows)))
    if request.precision != "bf16":
        return added
    step = max(1, _ROUNDED // request.width)
    for first in range(0, len(rows), step):
        here = slice(first, first + step)
        for k, segment in enumerate(request.segments):
            error = rounded[here, segment] - rows[here, segment]
            part = (error * total[here, segment]).sum(1) / shares[here, k:].sum(1)
            # 0 / 0 for a row without direction
            added[k:, here] += part.nan_to_num(0.0, 0.0, 0.0) * shares[here, k:].T
    return added


def _finish(total: Tensor, rows: Tensor, inverse: Tensor, radial: Tensor, segments: Sequence[slice]) -> None:
    """Add the gradient through the norms of the prefixes to that of their products, in place; the rest is 0."""
    # ∂/∂x_k of 1 / ‖x[:width]‖ is -x_k / ‖x[:width]‖³, for all prefixes that have the coordinate.
    share = (inverse.T.square() * radial).flip(0).cumsum(0).flip(0)
    for of_segment, segment in zip(share, segments, strict=True):
        total[:, segment].addcmul_(rows[:, segment], of_segment[:, None], value=-1.0)
    total[:, segments[-1].stop :] = 0.0


PREFIXES = Engine("tiled", forward, backward)
