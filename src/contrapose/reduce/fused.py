"""Row statistics in Triton kernels that never store a similarity. Imported only when used, since it needs Triton.

A program owns some rows, loops over the columns and keeps its sums in registers. There are no atomics, so the result
has the same bits every time. The backward pass computes similarities again. If pool and anchors are the same tensor,
one pass gives both terms of the gradient, dZ_i = Σ_j (g_i w_ij + g_j w_ji) z_j; if not, the anchors' gradient Σ_j w_ij
p_j is computed during the forward pass. With few rows, several programs divide the columns of a row between them.

Similarities of unit vectors are at most 1, so as long as |φ| stays below 40 a constant shift replaces the running
maximum, and e^φ is common to w_ij and w_ji: one exponential per similarity in each pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from contrapose.reduce.block import Selection
from contrapose.reduce.exponent import Exponent, exponent
from contrapose.reduce.kernels import BAND, backward_kernel, combine_kernel, count_kernel, forward_kernel
from contrapose.reduce.launch import BACKWARD, COUNT, FORWARD, FORWARD_WITH_MEAN, Launch, tile_of
from contrapose.reduce.logit import Logit, Scale
from contrapose.reduce.statistics import Count, Expectation, LogSumExp, Statistic
from contrapose.reduce.unit import refuse_second_derivative, same_tensor

MAX_WIDTH = 256  # wider rows' gradients do not fit in registers, and blocks of matrix products are faster
_LOG2E = math.log2(math.e)
# What a kernel sums: Σ e^φ alone; also Σ s e^φ; also Σ e^φ2 for another multiple φ2 of φ. The kernels' SECOND.
_TOTAL, _TOTAL_AND_EXPECTATION, _TWO_TOTALS = range(3)


@dataclass(eq=False)
class _Group:
    """The statistics that share one exponent: a log-sum-exp and at most one expectation."""

    phi: Exponent
    learned: Tensor | None  # (n,): the factors, if they need a gradient
    expectation: Expectation | None = None
    log_sum_exp: Tensor | None = None  # (n,): results, once computed
    mean: Tensor | None = None

    def value_of(self, statistic: Statistic) -> Tensor:
        """Return the computed value of one of the group's statistics, (n,)."""
        value = self.mean if isinstance(statistic, Expectation) else self.log_sum_exp
        assert value is not None
        return value


def _group_by_exponent(statistics: tuple[Statistic, ...], anchor: Tensor) -> list[_Group | None] | None:
    """Return the group of each statistic (None for a count); None if kernels cannot compute one of them."""
    known: list[tuple[Logit, _Group]] = []
    groups: list[_Group | None] = []
    for statistic in statistics:
        if isinstance(statistic, Count):
            groups.append(None)
            continue
        if not isinstance(statistic, LogSumExp | Expectation):
            return None
        matches = [group for logit, group in known if _same_logit(logit, statistic.logit)]
        if not matches:
            phi = exponent(statistic.logit, len(anchor), anchor)
            if phi is None:
                return None
            matches = [_Group(phi, phi.factor if statistic.logit.learned is not None else None)]
            known.append((statistic.logit, matches[0]))
        group = matches[0]
        if isinstance(statistic, Expectation):
            # No kernel computes an expectation's gradient with respect to a learned factor, or two kinds of expectation
            # at once.
            if group.learned is not None or (
                group.expectation is not None and group.expectation.detach != statistic.detach
            ):
                return None
            group.expectation = statistic
        groups.append(group)
    return groups


def _same_logit(one: Logit, two: Logit) -> bool:
    # Comparing tensors by value would wait for the device; factors in tensors are the same only if the logit object is.
    has_tensor = any(isinstance(logit, Scale) and isinstance(logit.factor, Tensor) for logit in (one, two))
    return one is two or (not has_tensor and one == two)


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
    groups = _group_by_exponent(statistics, anchor)
    if groups is None or anchor.dtype != torch.float32 or anchor.shape[1] > MAX_WIDTH or anchor.device != pool.device:
        return None
    selection = selection.contiguous()
    operands = _operands(anchor, pool, precision, bf16_anchor)
    hardest = _thresholds(*operands, selection, precision)
    distinct = list({id(group): group for group in groups if group is not None}.values())
    if len(distinct) == 2 and _share_exponential(*distinct):
        one, two = distinct
        reduction = _Reduction(one.phi, selection, precision, hardest, _TWO_TOTALS, times2=two.phi.times)
        one.log_sum_exp, two.log_sum_exp = _Statistics.apply(anchor, pool, None, *operands, reduction)
    else:
        for group in distinct:
            wants_expectation = group.expectation is not None
            reduction = _Reduction(
                group.phi,
                selection,
                precision,
                hardest,
                # A learned factor's gradient is g · Σ s e^φ / Σ e^φ, so it needs the expectation as well.
                sums=_TOTAL_AND_EXPECTATION if wants_expectation or group.learned is not None else _TOTAL,
                fixed_weights=group.expectation is not None and group.expectation.detach,
                returns_expectation=wants_expectation,
            )
            values = _Statistics.apply(anchor, pool, group.learned, *operands, reduction)
            group.log_sum_exp, group.mean = (*values, None)[:2]
    return tuple(
        selection.kept_counts(anchor.dtype) if group is None else group.value_of(statistic)
        for statistic, group in zip(statistics, groups, strict=True)
    )


def _share_exponential(one: _Group, two: _Group) -> bool:
    """Whether one pass can compute both log-sum-exps (hard negatives: exponents (β + 1) s / τ and β s / τ)."""
    no_expectation = one.expectation is None and two.expectation is None
    return no_expectation and one.phi.is_bounded and two.phi.is_bounded and one.phi.is_multiple_of(two.phi)


def _operands(anchor: Tensor, pool: Tensor, precision: str, bf16_anchor: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return anchor and pool as kernels read them; if both are one tensor, so are the results."""
    same = same_tensor(anchor, pool)
    left = _operand(anchor if bf16_anchor is None or precision != "bf16" or not same else bf16_anchor, precision)
    return left, left if same else _operand(pool, precision)


def _operand(z: Tensor, precision: str) -> Tensor:
    """Round z to the precision of the products and pad it with zeros to a width that tiles can have."""
    z, d = z.detach().to(torch.bfloat16 if precision == "bf16" else torch.float32), z.shape[1]
    # Triton's interpreter has no bf16 products: on the CPU it gets float32 numbers, rounded to bf16.
    z = z if z.is_cuda else z.float()
    width = max(16, 1 << (d - 1).bit_length())
    return torch.nn.functional.pad(z, (0, width - d)) if width > d else z.contiguous()


@dataclass(frozen=True, eq=False)
class _Reduction:
    """What one call of the kernels computes, and of which negatives."""

    phi: Exponent
    selection: Selection
    precision: str
    hardest: tuple[Tensor, Tensor] | None  # (n,) each: thresholds of the hardest negatives, weights of ties at them
    sums: int = _TOTAL
    fixed_weights: bool = False  # whether an expectation's weights carry no gradient
    times2: float = 0.0
    returns_expectation: bool = False  # false if only a learned factor's gradient needs it

    @property
    def output_count(self) -> int:
        return 2 if self.returns_expectation or self.sums == _TWO_TOTALS else 1

    @property
    def constants(self) -> dict[str, Any]:
        """Return the compile-time arguments that both kernels share."""
        phi = self.phi
        return {
            "CONSTANT_SHIFT": phi.is_bounded,
            "TEMPERATURE": phi.temperature,
            "DETACH": phi.detach,
            "SECOND": self.sums,
            "HARDEST_ONLY": self.hardest is not None,
        }

    @property
    def shift(self) -> float:
        """Return the constant shift; 0 if there is none."""
        return self.phi.upper_bound if self.phi.is_bounded else 0.0

    @property
    def shift2(self) -> float:
        """Return the constant shift of the second total; 0 if there is none."""
        return replace(self.phi, times=self.times2).upper_bound if self.sums == _TWO_TOTALS else 0.0

    @property
    def numbers(self) -> tuple[float, ...]:
        """Return the kernels' scalar arguments, with exponents in base 2."""
        phi, times, shifts = self.phi, (self.phi.times, self.times2), (self.shift, self.shift2)
        return (
            *(_LOG2E * x for x in times),
            *phi.numbers,
            *(_LOG2E * x for x in shifts),
        )


class _Statistics(torch.autograd.Function):
    """Takes `anchor` and `pool` only for autograd; kernels read the operands z and p."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, pool: Tensor, learned: Tensor | None, z: Tensor, p: Tensor, reduction: _Reduction
    ) -> tuple[Tensor, ...]:
        wants_anchor, wants_pool, *_ = ctx.needs_input_grad
        ctx.symmetric = wants_anchor and wants_pool and same_tensor(anchor, pool)
        # The mean row is the anchor's gradient only of a single log-sum-exp.
        ctx.has_means = wants_anchor and reduction.sums != _TWO_TOTALS and not reduction.returns_expectation
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
        refuse_second_derivative()
        reduction: _Reduction = ctx.reduction
        z, p, lse, second, *mean_rows = ctx.saved_tensors
        wants_anchor, wants_pool, wants_factor, *_ = ctx.needs_input_grad
        upstream = gradients[0].contiguous()
        saved = (lse, *_scaled_gradients(reduction, lse, second, upstream, gradients[-1]))
        symmetric = [ctx.symmetric and rows == columns for rows, columns in reduction.selection.runs]
        d_anchor = lse.new_empty((len(z), ctx.width)) if wants_anchor else None
        d_pool = lse.new_zeros((len(p), ctx.width)) if wants_pool and not all(symmetric) else None
        means = iter(mean_rows)
        for (rows, columns), both in zip(reduction.selection.runs, symmetric, strict=True):
            if d_anchor is not None:
                if both or not ctx.has_means:
                    out = _part(d_anchor, rows)
                    _backward(
                        reduction, z, p, rows, columns, saved, out, rows_are_anchors=True, columns_are_anchors=both
                    )
                else:
                    factor = (
                        reduction.phi.times if reduction.phi.factor is None else reduction.phi.factor.detach()[rows]
                    )
                    torch.mul(next(means), (upstream[rows] * factor)[:, None], out=d_anchor[rows])
            if d_pool is not None and not both:
                out = _part(d_pool, columns)
                _backward(reduction, p, z, columns, rows, saved, out, rows_are_anchors=False, columns_are_anchors=True)
        return d_anchor, d_pool, upstream * second if wants_factor else None, None, None, None


def _part(x: Tensor, rows: slice) -> Tensor:
    """Return x[rows]; x itself if that is all of it, since even a slice takes microseconds on the host."""
    return x if rows.start == 0 and rows.stop == len(x) else x[rows]


def _scaled_gradients(
    reduction: _Reduction, lse: Tensor, second: Tensor, a: Tensor, b: Tensor
) -> tuple[Tensor, Tensor]:
    """Scale the gradients a and b of the statistics, (n,) each, for the backward kernel. It computes ∂L/∂s as

        one total             e^φ φ' a
        and an expectation    e^φ (φ' (a + b s) + b), or e^φ (φ' a + b) if its weights are fixed
        two totals            (s / τ)' (a e^φ + b e^φ2)

    Kernels with a constant shift compute e^{φ - shift} where a softmax weight e^{φ - lse} is due; a and b make up for
    the difference. For one total the kernel does that itself, with b = 1 / Σ e^{φ - shift}.
    """
    phi = reduction.phi
    if reduction.sums == _TOTAL:
        return a, second
    if reduction.output_count == 2 and reduction.sums == _TOTAL_AND_EXPECTATION and not reduction.fixed_weights:
        a = a - b * second
    if phi.is_bounded:
        correction = torch.exp(phi.upper_bound - lse)
        a = a * correction
        if reduction.sums == _TWO_TOTALS:
            a = a * phi.times
            b = b * (torch.exp(reduction.shift2 - second) * reduction.times2)
        else:
            b = b * correction
    return a.contiguous(), b.contiguous()


def _forward(
    reduction: _Reduction, z: Tensor, p: Tensor, rows: slice, columns: slice, *, d: int, with_mean: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return a run's results of `forward_kernel`: log-sum-exps (n,), second sums (n,) and mean rows (n, d) or None."""
    z, p = _part(z, rows), _part(p, columns)
    tile = tile_of(reduction.precision, FORWARD_WITH_MEAN if with_mean else FORWARD, len(z), d)
    launch = Launch(tile, z, p, d, reduction.precision)
    out, second = z.new_empty((2, launch.splits, launch.n), dtype=torch.float32)
    mean = z.new_empty((launch.splits, launch.n, d), dtype=torch.float32) if with_mean else None
    launch(
        forward_kernel, *_ids(reduction, rows, columns), *_row_data(reduction, rows, z), out, second,
        out if mean is None else mean,  # any tensor: without MEAN_ROW it is not written to
        numbers=reduction.numbers, MEAN_ROW=with_mean, FAST=z.is_cuda, **reduction.constants,
    )  # fmt: skip
    if launch.splits == 1:
        return out[0], second[0], None if mean is None else mean[0]
    flags = {"CONSTANT_SHIFT": reduction.phi.is_bounded, "SECOND": reduction.sums}
    total, second = launch.combine(combine_kernel, out, second, _LOG2E * reduction.shift, **flags)
    if mean is not None:
        # An anchor without negatives has total = -inf, and -inf - (-inf) would be NaN.
        weight = torch.exp(out - total.masked_fill(total == -torch.inf, 0.0))
        mean = (weight[..., None] * mean).sum(0)
    return total, second, mean


def _backward(
    reduction: _Reduction, z: Tensor, p: Tensor, rows: slice, columns: slice, saved: tuple[Tensor, ...], out: Tensor,
    *, rows_are_anchors: bool, columns_are_anchors: bool,
) -> None:  # fmt: skip
    """Write the gradient of some rows of z to `out`, (rows, d): see `backward_kernel`."""
    d = out.shape[1]
    z, p = _part(z, rows), _part(p, columns)
    launch = Launch(tile_of(reduction.precision, BACKWARD, len(out), d), z, p, d, reduction.precision)
    anchors = rows if rows_are_anchors else columns
    parts = out if launch.splits == 1 else out.new_empty((launch.splits, *out.shape))
    data = _row_data(reduction, anchors, z)
    ids = _ids(reduction, rows, columns) if rows_are_anchors else _ids(reduction, columns, rows)[::-1]
    launch(
        backward_kernel, *ids, *data, *(_part(x, anchors) for x in saved), parts, numbers=reduction.numbers,
        ROWS_ARE_ANCHORS=rows_are_anchors, COLUMNS_ARE_ANCHORS=columns_are_anchors,
        FIXED_WEIGHTS=reduction.fixed_weights, FAST=z.is_cuda,
        # An expectation that only a learned factor needed has no gradient of its own.
        **reduction.constants | {"SECOND": reduction.sums if reduction.output_count == 2 else _TOTAL},
    )  # fmt: skip
    if launch.splits > 1:
        torch.sum(parts, 0, out=out)  # in a fixed order: no atomics, the same bits every time


def _ids(reduction: _Reduction, anchors: slice, pool: slice) -> tuple[Tensor, Tensor]:
    return _part(reduction.selection.anchor_id, anchors), _part(reduction.selection.pool_id, pool)


def _row_data(reduction: _Reduction, anchors: slice, unused: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return factors, thresholds and tie weights, (n,) each; `unused` in place of those that kernels do not read."""
    factors, hardest = unused, (unused, unused)
    if reduction.phi.factor is not None:
        factors = _part(reduction.phi.factor.detach(), anchors).contiguous()
    elif not reduction.phi.is_bounded:
        factors = unused.new_full((anchors.stop - anchors.start,), reduction.phi.times, dtype=torch.float32)
    if reduction.hardest is not None:
        hardest = _part(reduction.hardest[0], anchors), _part(reduction.hardest[1], anchors)
    return factors, *hardest


def _thresholds(z: Tensor, p: Tensor, selection: Selection, precision: str) -> tuple[Tensor, Tensor] | None:
    """Return each anchor's similarity to its k-th hardest negative, and the weight of ties there: weights sum to k.

    Sorting would need the matrix. Instead each pass counts the negatives above eight thresholds and keeps the interval
    that holds the k-th: after eight passes it is as narrow as float32 resolves.
    """
    if selection.hardest is None:
        return None
    k = selection.kept_counts(torch.int64)
    reduction = _Reduction(Exponent(), selection, precision, None)
    low = torch.full((len(z),), -1.01, device=z.device)  # products of rounded unit vectors may exceed ±1 a little
    width = 2.02
    for _ in range(8):
        width /= 8
        reached = _counts_above(reduction, z, p, low, width) >= k[:, None]
        low = low + width * (reached.sum(1) - 1).clamp(min=0)
    counts = _counts_above(reduction, z, p, low - BAND.value, 2 * BAND.value)
    above, ties = counts[:, 1], counts[:, 0] - counts[:, 1]
    return low, ((k - above) / ties.clamp(min=1)).clamp(0, 1).float()


def _counts_above(reduction: _Reduction, z: Tensor, p: Tensor, start: Tensor, step: float) -> Tensor:
    """Return (n, 8): the number of negatives at or above start + k · step, k = 0…7."""
    counts = torch.empty((len(z), 8), dtype=torch.int64, device=z.device)
    for rows, columns in reduction.selection.runs:
        launch = Launch(COUNT, _part(z, rows), _part(p, columns), z.shape[1], reduction.precision)
        parts = counts.new_empty((launch.splits, launch.n, 8), dtype=torch.int32)
        launch(count_kernel, *_ids(reduction, rows, columns), _part(start, rows), parts, numbers=(step,))
        counts[rows] = parts.sum(0)
    return counts
