"""Row statistics in Triton kernels that never store a similarity. Imported only when used, since it needs Triton.

A program owns some rows, loops over the columns and keeps its sums in registers. There are no atomics, so the result
has the same bits every time. The backward pass computes similarities again. If pool and anchors are the same tensor,
one pass gives both terms of the gradient, dZ_i = Σ_j (g_i w_ij + g_j w_ji) z_j; if not, the anchors' gradient Σ_j w_ij
p_j is computed during the forward pass. With few rows, several programs divide the columns of a row between them.

Similarities of unit vectors are at most 1, so as long as |φ| stays below 40 a constant shift replaces the running
maximum, and e^φ is common to w_ij and w_ji: one exponential per similarity in each pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from contrapose.reduce.block import Selection
from contrapose.reduce.comparisons import both_directions
from contrapose.reduce.derivatives import check_backward
from contrapose.reduce.kernels import backward_kernel, combine_kernel, forward_kernel
from contrapose.reduce.launch import (
    BACKWARD,
    BACKWARD_OF_HARDEST,
    FORWARD,
    FORWARD_OF_HARDEST,
    FORWARD_WITH_MEAN,
    Launch,
    tile_of,
)
from contrapose.reduce.reduction import (
    LOG2E,
    TOTAL,
    TOTAL_AND_EXPECTATION,
    TWO_TOTALS,
    Reduction,
    group_by_exponent,
    ids_of,
    operands_of,
    part,
    row_data,
    scaled_gradients,
    share_exponential,
)
from contrapose.reduce.statistics import Statistic
from contrapose.reduce.thresholds import thresholds
from contrapose.reduce.tiled import TiledStatistics
from contrapose.reduce.tiles import tile_width
from contrapose.reduce.unit import same_tensor

MAX_RESIDENT_WIDTH = 256  # up to here a program keeps its rows and their gradient in registers
MAX_WIDTH = 2048  # up to here kernels are tested; wider embeddings are reduced in blocks


def reduce(
    anchor: Tensor,
    pool: Tensor,
    selection: Selection,
    statistics: tuple[Statistic, ...],
    *,
    precision: str,
    bf16_anchor: Tensor | None = None,
) -> tuple[Tensor, ...] | None:
    """Return each statistic of each anchor's negatives, (n,) in float32, with gradients; None if unsupported.

    precision     of the products: "ieee" float32, "tf32x3" (nearly that), "tf32", or "bf16"; sums are always float32
    bf16_anchor   the anchors in bf16, if they are the pool too and have been rounded already
    """
    groups = group_by_exponent(statistics, anchor)
    prepared = None if groups is None else prepare(anchor, pool, selection, precision, bf16_anchor)
    if groups is None or prepared is None:
        return None
    selection, hardest, operands, compute = prepared.selection, prepared.hardest, prepared.operands, prepared.function
    distinct = list({id(group): group for group in groups if group is not None}.values())
    if len(distinct) == 2 and share_exponential(*distinct):
        one, two = distinct
        reduction = Reduction(one.phi, selection, precision, hardest, TWO_TOTALS, times2=two.phi.times)
        one.log_sum_exp, two.log_sum_exp = compute.apply(anchor, pool, None, *operands, reduction)
    else:
        for group in distinct:
            wants_expectation = group.expectation is not None
            reduction = Reduction(
                group.phi,
                selection,
                precision,
                hardest,
                # A learned factor's gradient is g · Σ s e^φ / Σ e^φ, so it needs the expectation as well.
                sums=TOTAL_AND_EXPECTATION if wants_expectation or group.learned is not None else TOTAL,
                fixed_weights=group.expectation is not None and group.expectation.detach,
                returns_expectation=wants_expectation,
            )
            values = compute.apply(anchor, pool, group.learned, *operands, reduction)
            group.log_sum_exp, group.mean = (*values, None)[:2]
    return tuple(
        selection.kept_counts(anchor.dtype) if group is None else group.value_of(statistic)
        for statistic, group in zip(statistics, groups, strict=True)
    )


@dataclass(frozen=True, eq=False)
class Prepared:
    """What any call of the kernels needs: which of them apply, and their operands."""

    selection: Selection
    hardest: tuple[Tensor, Tensor] | None
    operands: tuple[Tensor, Tensor]
    function: type[_Statistics] | type[TiledStatistics]


def prepare(
    anchor: Tensor, pool: Tensor, selection: Selection, precision: str, bf16_anchor: Tensor | None
) -> Prepared | None:
    """Choose the kernels and make their operands; None if they do not support these embeddings."""
    d = anchor.shape[1]
    if anchor.dtype != torch.float32 or d > MAX_WIDTH or anchor.device != pool.device:
        return None
    by_tiles = d > MAX_RESIDENT_WIDTH or both_directions(selection.runs, same_tensor(anchor, pool))
    width = tile_width(d) if by_tiles else max(16, 1 << (d - 1).bit_length())
    operands = operands_of(anchor, pool, precision, bf16_anchor, width)
    selection = selection.contiguous()
    hardest = thresholds(*operands, selection, precision)
    return Prepared(selection, hardest, operands, TiledStatistics if by_tiles else _Statistics)


class _Statistics(torch.autograd.Function):
    """Takes `anchor` and `pool` only for autograd; kernels read the operands z and p."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, pool: Tensor, learned: Tensor | None, z: Tensor, p: Tensor, reduction: Reduction
    ) -> tuple[Tensor, ...]:
        wants_anchor, wants_pool, *_ = ctx.needs_input_grad
        ctx.symmetric = wants_anchor and wants_pool and same_tensor(anchor, pool)
        # The mean row is the anchor's gradient only of a single log-sum-exp.
        ctx.has_means = wants_anchor and reduction.sums != TWO_TOTALS and not reduction.returns_expectation
        ctx.width = anchor.shape[1]
        parts = [
            # A run that is its own transpose gets both terms of its gradient from one backward pass, without mean rows.
            _forward(
                reduction,
                z,
                p,
                rows,
                columns,
                d=ctx.width,
                with_mean=ctx.has_means and not (ctx.symmetric and rows == columns),
            )
            for rows, columns in reduction.selection.runs
        ]
        lse, second = (
            values[0] if len(values) == 1 else torch.cat(values)
            for values in zip(*(part[:2] for part in parts), strict=True)
        )
        ctx.reduction = reduction
        ctx.save_for_backward(z, p, lse, second, *(part[2] for part in parts if part[2] is not None))
        return (lse, second) if reduction.output_count == 2 else (lse,)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        check_backward(*gradients)
        reduction: Reduction = ctx.reduction
        z, p, lse, second, *mean_rows = ctx.saved_tensors
        wants_anchor, wants_pool, wants_factor, *_ = ctx.needs_input_grad
        upstream = gradients[0].contiguous()
        saved = (lse, *scaled_gradients(reduction, lse, second, upstream, gradients[-1]))
        symmetric = [ctx.symmetric and rows == columns for rows, columns in reduction.selection.runs]
        d_anchor = lse.new_empty((len(z), ctx.width)) if wants_anchor else None
        d_pool = lse.new_zeros((len(p), ctx.width)) if wants_pool and not all(symmetric) else None
        means = iter(mean_rows)
        for (rows, columns), both in zip(reduction.selection.runs, symmetric, strict=True):
            if d_anchor is not None:
                if both or not ctx.has_means:
                    out = part(d_anchor, rows)
                    _backward(
                        reduction, z, p, rows, columns, saved, out, rows_are_anchors=True, columns_are_anchors=both
                    )
                else:
                    factor = (
                        reduction.phi.times if reduction.phi.factor is None else reduction.phi.factor.detach()[rows]
                    )
                    torch.mul(next(means), (upstream[rows] * factor)[:, None], out=d_anchor[rows])
            if d_pool is not None and not both:
                out = part(d_pool, columns)
                _backward(reduction, p, z, columns, rows, saved, out, rows_are_anchors=False, columns_are_anchors=True)
        return d_anchor, d_pool, upstream * second if wants_factor else None, None, None, None


def _forward(
    reduction: Reduction, z: Tensor, p: Tensor, rows: slice, columns: slice, *, d: int, with_mean: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return a run's results of `forward_kernel`: log-sum-exps (n,), second sums (n,) and mean rows (n, d) or None."""
    z, p = part(z, rows), part(p, columns)
    direction = FORWARD_WITH_MEAN if with_mean else FORWARD if reduction.hardest is None else FORWARD_OF_HARDEST
    tile = tile_of(reduction.precision, direction, len(z), d)
    launch = Launch(tile, z, p, d, reduction.precision, ids=reduction.selection.id_numbers(rows, columns))
    out, second = z.new_empty((2, launch.splits, launch.n), dtype=torch.float32)
    mean = z.new_empty((launch.splits, launch.n, d), dtype=torch.float32) if with_mean else None
    launch(
        forward_kernel, *ids_of(reduction, rows, columns), *row_data(reduction, rows, z), out, second,
        out if mean is None else mean,  # any tensor: without MEAN_ROW it is not written to
        numbers=reduction.numbers, MEAN_ROW=with_mean, FAST=z.is_cuda, **reduction.constants,
    )  # fmt: skip
    if launch.splits == 1:
        return out[0], second[0], None if mean is None else mean[0]
    flags = {"CONSTANT_SHIFT": reduction.phi.is_bounded, "SECOND": reduction.sums}
    total, second = launch.combine(combine_kernel, out, second, LOG2E * reduction.shift, **flags)
    if mean is not None:
        # An anchor without negatives has total = -inf, and -inf - (-inf) would be NaN.
        weight = torch.exp(out - total.masked_fill(total == -torch.inf, 0.0))
        mean = (weight[..., None] * mean).sum(0)
    return total, second, mean


def _backward(
    reduction: Reduction, z: Tensor, p: Tensor, rows: slice, columns: slice, saved: tuple[Tensor, ...], out: Tensor,
    *, rows_are_anchors: bool, columns_are_anchors: bool,
) -> None:  # fmt: skip
    """Write the gradient of some rows of z to `out`, (rows, d): see `backward_kernel`."""
    d = out.shape[1]
    z, p = part(z, rows), part(p, columns)
    direction = BACKWARD if reduction.hardest is None else BACKWARD_OF_HARDEST
    tile = tile_of(reduction.precision, direction, len(out), d)
    launch = Launch(tile, z, p, d, reduction.precision, ids=reduction.selection.id_numbers(rows, columns))
    anchors = rows if rows_are_anchors else columns
    parts = out if launch.splits == 1 else out.new_empty((launch.splits, *out.shape))
    data = row_data(reduction, anchors, z)
    ids = ids_of(reduction, rows, columns) if rows_are_anchors else ids_of(reduction, columns, rows)[::-1]
    launch(
        backward_kernel, *ids, *data, *(part(x, anchors) for x in saved), parts, numbers=reduction.numbers,
        ROWS_ARE_ANCHORS=rows_are_anchors, COLUMNS_ARE_ANCHORS=columns_are_anchors,
        FIXED_WEIGHTS=reduction.fixed_weights, FAST=z.is_cuda,
        # An expectation that only a learned factor needed has no gradient of its own.
        **reduction.constants | {"SECOND": reduction.sums if reduction.output_count == 2 else TOTAL},
    )  # fmt: skip
    if launch.splits > 1:
        torch.sum(parts, 0, out=out)  # in a fixed order: no atomics, the same bits every time
