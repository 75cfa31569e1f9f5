"""The fused engine: statistics from Triton kernels that never store a similarity. Imported only when used.

A program owns some rows, loops over the columns and keeps its sums in registers. There are no atomics, so results are
bit-identical in every call. The backward pass recomputes the similarities. If pool and anchors are the same tensor, one pass
gives both terms of the gradient, dZ_i = Σ_j (g_i w_ij + g_j w_ji) z_j; if not, the anchors' gradient Σ_j w_ij p_j is computed
during the forward pass. With few rows, several programs share the columns of a row.

Similarities of unit vectors are at most 1. So as long as |φ| stays below 40, a constant shift replaces the running maximum,
and w_ij and w_ji share e^φ: one exponential per similarity in each pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from contrapose.reduce.engine import Engine, Gradients, Needs, Operands, Tensors
from contrapose.reduce.fused.kernels import backward_kernel, combine_kernel, forward_kernel
from contrapose.reduce.fused.launch import (
    BACKWARD,
    BACKWARD_BELOW,
    BACKWARD_OF_HARDEST,
    FORWARD,
    FORWARD_BELOW,
    FORWARD_OF_HARDEST,
    FORWARD_WITH_MEAN,
    RowLaunch,
    tile_of,
)
from contrapose.reduce.hardest.sums import HardestSums, plane_count
from contrapose.reduce.request import LOG2E, TOTAL, TWO_TOTALS, KernelRequest, ids_of, part, row_data, scaled_gradients
from contrapose.reduce.unit import same_tensor


def forward(operands: Operands, request: KernelRequest, needs: Needs) -> tuple[Tensors, Tensors]:
    """Return log-sum-exps and, if requested, the second statistic, (n,) each."""
    z, p = operands.z, operands.p
    tie_weight, means = z, []
    if request.hardest is not None:
        sums = HardestSums(request, z[:, 0])
        for rows, columns in request.selection.runs:
            sums.add(rows, _hardest_sums(request, z, p, rows, columns))
        lse, second, tie_weight = sums.results()
    else:
        flags = zip(request.selection.runs, _with_mean(request, needs, same=operands.same), strict=True)
        parts = [_forward(request, z, p, rows, columns, with_mean=flag) for (rows, columns), flag in flags]
        lse, second = (
            values[0] if len(values) == 1 else torch.cat(values)
            for values in zip(*(part[:2] for part in parts), strict=True)
        )
        means = [part[2] for part in parts if part[2] is not None]
    values = (lse, second) if request.output_count == 2 else (lse,)
    return values, (z, p, lse, second, tie_weight, *means)


def backward(request: KernelRequest, saved: Sequence[Tensor], gradients: Tensors, needs: Needs) -> Gradients:
    """Return the gradients of anchors, pool and learned factor."""
    z, p, lse, second, tie_weight, *mean_rows = saved
    upstream = gradients[0].contiguous()
    of_anchors = (tie_weight, lse, *scaled_gradients(request, lse, second, upstream, gradients[-1]))
    same = same_tensor(z, p)
    symmetric = list(_symmetric(request, needs, same=same))
    d_anchor = lse.new_empty((len(z), request.width)) if needs.anchor else None
    d_pool = lse.new_zeros((len(p), request.width)) if needs.pool and not all(symmetric) else None
    means = iter(mean_rows)
    with_mean = _with_mean(request, needs, same=same)
    for (rows, columns), both, has_mean in zip(request.selection.runs, symmetric, with_mean, strict=True):
        if d_anchor is not None and has_mean:
            factor = request.phi.times if request.phi.factor is None else request.phi.factor.detach()[rows]
            torch.mul(next(means), (upstream[rows] * factor)[:, None], out=d_anchor[rows])
        elif d_anchor is not None:
            out = part(d_anchor, rows)
            _backward(request, z, p, rows, columns, of_anchors, out, rows_are_anchors=True, columns_are_anchors=both)
        if d_pool is not None and not both:
            out = part(d_pool, columns)
            _backward(request, p, z, columns, rows, of_anchors, out, rows_are_anchors=False, columns_are_anchors=True)
    return d_anchor, d_pool, upstream * second if needs.learned else None


def _symmetric(request: KernelRequest, needs: Needs, *, same: bool) -> Iterator[bool]:
    """Yield for each run whether it is its own transpose; if so, one backward pass gives both terms of its gradient."""
    return (needs.anchor and needs.pool and same and rows == columns for rows, columns in request.selection.runs)


def _with_mean(request: KernelRequest, needs: Needs, *, same: bool) -> Iterator[bool]:
    """Yield for each run whether its forward pass computes mean rows, which are its anchors' gradient.

    This applies to a single log-sum-exp over all negatives.
    """
    single = request.sums != TWO_TOTALS and not request.returns_expectation and request.hardest is None
    return (needs.anchor and single and not both for both in _symmetric(request, needs, same=same))


def _row_launch(request: KernelRequest, direction: int, z: Tensor, p: Tensor, rows: slice, columns: slice) -> RowLaunch:
    z, p = part(z, rows), part(p, columns)
    tile = tile_of(request.precision, direction, len(z), request.width)
    ids = request.selection.id_numbers(rows, columns)
    return RowLaunch(tile, z, p, request.width, request.precision, ids=ids)


def _forward(
    request: KernelRequest, z: Tensor, p: Tensor, rows: slice, columns: slice, *, with_mean: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return a run's results of `forward_kernel`: log-sum-exps (n,), second sums (n,) and mean rows (n, d) or None."""
    direction = FORWARD_WITH_MEAN if with_mean else FORWARD if request.selection.ceiling is None else FORWARD_BELOW
    launch = _row_launch(request, direction, z, p, rows, columns)
    out, second = z.new_empty((2, launch.splits, launch.n), dtype=torch.float32)
    mean = z.new_empty((launch.splits, launch.n, request.width), dtype=torch.float32) if with_mean else None
    launch(
        forward_kernel, *ids_of(request, rows, columns), *row_data(request, rows, z), out, second,
        out if mean is None else mean,  # any tensor: without MEAN_ROW it is not written to
        numbers=request.numbers, MEAN_ROW=with_mean, FAST=z.is_cuda, **request.constants,
    )  # fmt: skip
    if launch.splits == 1:
        return out[0], second[0], None if mean is None else mean[0]
    flags = {"CONSTANT_SHIFT": request.phi.is_bounded, "SECOND": request.sums}
    total, second = launch.combine(combine_kernel, out, second, LOG2E * request.phi.shift, **flags)
    if mean is not None:
        # An anchor without negatives has total = -inf, and -inf - (-inf) would be NaN.
        weight = torch.exp(out - total.masked_fill(total == -torch.inf, 0.0))
        mean = (weight[..., None] * mean).sum(0)
    return total, second, mean


def _hardest_sums(request: KernelRequest, z: Tensor, p: Tensor, rows: slice, columns: slice) -> Tensor:
    """Return a run's sums over the hardest negatives, (planes, splits, n), for `HardestSums`."""
    launch = _row_launch(request, FORWARD_OF_HARDEST, z, p, rows, columns)
    out = z.new_empty((plane_count(request), launch.splits, launch.n), dtype=torch.float32)
    launch(
        forward_kernel, *ids_of(request, rows, columns), *row_data(request, rows, z), out, out, out,
        numbers=request.numbers, MEAN_ROW=False, FAST=z.is_cuda, **request.constants,
    )  # fmt: skip
    return out


def _backward(
    request: KernelRequest, z: Tensor, p: Tensor, rows: slice, columns: slice, of_anchors: Tensors, out: Tensor,
    *, rows_are_anchors: bool, columns_are_anchors: bool,
) -> None:  # fmt: skip
    """Write the gradient of some rows of z to `out`, (rows, d): see `backward_kernel`."""
    direction = BACKWARD if request.selection.ceiling is None else BACKWARD_BELOW
    launch = _row_launch(request, direction if request.hardest is None else BACKWARD_OF_HARDEST, z, p, rows, columns)
    anchors = rows if rows_are_anchors else columns
    parts = out if launch.splits == 1 else out.new_empty((launch.splits, *out.shape))
    ids = ids_of(request, rows, columns) if rows_are_anchors else ids_of(request, columns, rows)[::-1]
    launch(
        backward_kernel, *ids, *row_data(request, anchors, z), *(part(x, anchors) for x in of_anchors), parts,
        numbers=request.numbers, ROWS_ARE_ANCHORS=rows_are_anchors, COLUMNS_ARE_ANCHORS=columns_are_anchors,
        FIXED_WEIGHTS=request.fixed_weights, FAST=z.is_cuda,
        # An expectation that only a learned factor needed has no gradient of its own.
        **request.constants | {"SECOND": request.sums if request.output_count == 2 else TOTAL},
    )  # fmt: skip
    if launch.splits > 1:
        torch.sum(parts, 0, out=out)  # in a fixed order, without atomics: bit-identical in every call


FUSED = Engine("fused", forward, backward)
