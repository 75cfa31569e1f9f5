"""Row statistics in Triton kernels that never store a similarity. Imported only when it is used.

A program owns some rows, walks over the columns and keeps what it adds up in registers: no atomics, the same bits each time.
In the backward pass similarities are computed again. Where pool and anchors are the same tensor, one pass gives both halves of
the gradient, dZ_i = Σ_j (g_i w_ij + g_j w_ji) z_j; where they are not, the anchors' gradient Σ_j w_ij p_j is found on the way
forward. Few rows share out the columns between programs.

Similarities of unit vectors are at most 1, so while φ stays below 40 a constant takes the place of a running maximum, and
e^φ is common to w_ij and w_ji: one exponential for each similarity, in each pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from contrapose.reduce.block import Selection
from contrapose.reduce.exponent import Exponent, exponent
from contrapose.reduce.kernels import BAND, backward_kernel, count_kernel, forward_kernel, join_kernel
from contrapose.reduce.launch import BACKWARD, COUNT, FORWARD, GATHER, Launch, tile_of
from contrapose.reduce.logit import Logit, Scale
from contrapose.reduce.statistics import Count, Expectation, LogSumExp, Statistic
from contrapose.reduce.unit import refuse_second_derivative, same_tensor

WIDEST = 256  # of embeddings: beyond that a row's gradient does not fit in registers, and blocks of matrix products are faster
_LOG2E = math.log2(math.e)
# What a kernel adds up: Σ e^φ; with Σ s e^φ; with the sum for another multiple of φ.
_ONE, _AND_EXPECTATION, _AND_ANOTHER = range(3)


@dataclass(eq=False)
class _Asked:
    """What is asked of one exponent."""

    phi: Exponent
    learned: Tensor | None
    expectation: Expectation | None = None
    total: Tensor | None = None  # what was found
    mean: Tensor | None = None

    def answer(self, statistic: Statistic) -> Tensor:
        """The statistic's values, once they are found."""
        values = self.mean if isinstance(statistic, Expectation) else self.total
        assert values is not None
        return values


def supported(statistics: tuple[Statistic, ...], anchor: Tensor) -> list[_Asked | None] | None:
    """What each statistic asks of which exponent (None for a count); None if kernels cannot do one of them."""
    asked: list[tuple[Logit, _Asked]] = []
    each: list[_Asked | None] = []
    for statistic in statistics:
        if isinstance(statistic, Count):
            each.append(None)
            continue
        if not isinstance(statistic, LogSumExp | Expectation):
            return None
        known = [of for logit, of in asked if _alike(logit, statistic.logit)]
        if not known:
            phi = exponent(statistic.logit, len(anchor), anchor)
            if phi is None:
                return None
            known = [_Asked(phi, phi.factor if statistic.logit.learned is not None else None)]
            asked.append((statistic.logit, known[0]))
        of = known[0]
        if isinstance(statistic, Expectation):
            if of.learned is not None or (of.expectation is not None and of.expectation.detach != statistic.detach):
                return None
            of.expectation = statistic
        each.append(of)
    return each


def _alike(one: Logit, two: Logit) -> bool:
    tensors = any(isinstance(logit, Scale) and isinstance(logit.factor, Tensor) for logit in (one, two))
    return one is two or (not tensors and one == two)


def reduce(
    anchor: Tensor,
    pool: Tensor,
    selection: Selection,
    statistics: tuple[Statistic, ...],
    precision: str,
    bf16_anchor: Tensor | None = None,
) -> tuple[Tensor, ...] | None:
    """Each statistic of each anchor's negatives in float32, with gradients to anchor and pool; None where kernels cannot.

    precision   of the products: "ieee" float32, "tf32x3" (nearly that), "tf32", or "bf16" inputs; sums are always float32
    bf16_anchor     anchors, where they are the pool too, in bf16
    """
    each = supported(statistics, anchor)
    if each is None or anchor.dtype != torch.float32 or anchor.shape[1] > WIDEST or anchor.device != pool.device:
        return None
    selection = selection.contiguous()
    operands = _operands(anchor, pool, precision, bf16_anchor)
    cut = _thresholds(*operands, selection, precision)
    logits = list({id(of): of for of in each if of is not None}.values())
    if len(logits) == 2 and _joint(*logits):
        one, two = logits
        problem = _Problem(one.phi, selection, precision, cut, _AND_ANOTHER, times2=two.phi.times)
        one.total, two.total = _Statistics.apply(anchor, pool, None, *operands, problem)
    else:
        for of in logits:
            fixed = of.expectation is not None and of.expectation.detach
            what = _AND_EXPECTATION if of.expectation is not None or of.learned is not None else _ONE
            asked = of.expectation is not None
            problem = _Problem(of.phi, selection, precision, cut, what, fixed, asked=asked)
            of.total, of.mean = (*_Statistics.apply(anchor, pool, of.learned, *operands, problem), None)[:2]
    return tuple(
        selection.chosen(anchor.dtype) if of is None else of.answer(statistic)
        for statistic, of in zip(statistics, each, strict=True)
    )


def _joint(one: _Asked, two: _Asked) -> bool:
    plain = one.expectation is None and two.expectation is None
    return plain and one.phi.shared and two.phi.shared and one.phi.same_but_for_times(two.phi)


def _operands(anchor: Tensor, pool: Tensor, precision: str, bf16_anchor: Tensor | None) -> tuple[Tensor, Tensor]:
    """Both as kernels read them; one tensor given twice stays one."""
    same = same_tensor(anchor, pool)
    left = _operand(anchor if bf16_anchor is None or precision != "bf16" or not same else bf16_anchor, precision)
    return left, left if same else _operand(pool, precision)


def _operand(z: Tensor, precision: str) -> Tensor:
    """In the precision of the products, with zeros up to a width that tiles have."""
    z, d = z.detach().to(torch.bfloat16 if precision == "bf16" else torch.float32), z.shape[1]
    z = z if z.is_cuda else z.float()  # Triton's interpreter multiplies no bf16: it gets numbers bf16_anchor to that
    width = max(16, 1 << (d - 1).bit_length())
    return torch.nn.functional.pad(z, (0, width - d)) if width > d else z.contiguous()


@dataclass(frozen=True, eq=False)
class _Problem:
    phi: Exponent
    selection: Selection
    precision: str
    cut: tuple[Tensor, Tensor] | None  # thresholds of the hardest, and the share of ties
    what: int = _ONE
    fixed: bool = False  # whether an expectation's weights carry no gradient
    times2: float = 0.0
    asked: bool = False  # whether the expectation is wanted for itself, or for a learned factor only

    @property
    def answers(self) -> int:
        """How many statistics are asked for."""
        return 2 if self.asked or self.what == _AND_ANOTHER else 1

    @property
    def constants(self) -> dict[str, Any]:
        phi = self.phi
        return {
            "SHARED": phi.shared,
            "TEMPERATURE": phi.temperature,
            "DETACH": phi.detach,
            "SECOND": self.what,
            "HARD": self.cut is not None,
        }

    @property
    def most(self) -> float:
        """The constant shift; 0 where there is none."""
        return self.phi.upper_bound if self.phi.shared else 0.0

    @property
    def most2(self) -> float:
        """The same of the other total."""
        return replace(self.phi, times=self.times2).upper_bound if self.what == _AND_ANOTHER else 0.0

    @property
    def numbers(self) -> tuple[float, ...]:
        """As kernels take them: exponents in base 2."""
        phi, times, most = self.phi, (self.phi.times, self.times2), (self.most, self.most2)
        return (
            *(_LOG2E * x for x in times),
            *phi.numbers,
            *(_LOG2E * x for x in most),
        )


class _Statistics(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, pool: Tensor, learned: Tensor | None, z: Tensor, p: Tensor, problem: _Problem
    ) -> tuple[Tensor, ...]:
        wants_anchor, wants_pool, *_ = ctx.needs_input_grad
        ctx.both = wants_anchor and wants_pool and same_tensor(anchor, pool)
        ctx.gathers = wants_anchor and problem.what != _AND_ANOTHER and not problem.asked
        ctx.width = anchor.shape[1]
        parts = [
            _forward(problem, z, p, rows, columns, ctx.width, ctx.gathers and not (ctx.both and rows == columns))
            for rows, columns in problem.selection.runs
        ]
        lse, second = (
            each[0] if len(each) == 1 else torch.cat(each) for each in zip(*(part[:2] for part in parts), strict=True)
        )
        ctx.problem = problem
        ctx.save_for_backward(z, p, lse, second, *(part[2] for part in parts if part[2] is not None))
        return (lse, second) if problem.answers == 2 else (lse,)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        problem: _Problem = ctx.problem
        z, p, lse, second, *means = ctx.saved_tensors
        wants_anchor, wants_pool, wants_factor, *_ = ctx.needs_input_grad
        upstream = gradients[0].contiguous()
        saved = (lse, *_lifted(problem, lse, second, upstream, gradients[-1]))
        symmetric = [ctx.both and rows == columns for rows, columns in problem.selection.runs]
        d_anchor = lse.new_empty((len(z), ctx.width)) if wants_anchor else None
        d_pool = lse.new_zeros((len(p), ctx.width)) if wants_pool and not all(symmetric) else None
        found = iter(means)
        for (rows, columns), alike in zip(problem.selection.runs, symmetric, strict=True):
            if d_anchor is not None:
                if alike or not ctx.gathers:
                    _backward(problem, z, p, rows, columns, saved, _part(d_anchor, rows), own=True, other=alike)
                else:
                    steep = problem.phi.times if problem.phi.factor is None else problem.phi.factor.detach()[rows]
                    torch.mul(next(found), (upstream[rows] * steep)[:, None], out=d_anchor[rows])
            if d_pool is not None and not alike:
                _backward(problem, p, z, columns, rows, saved, _part(d_pool, columns), own=False, other=True)
        return d_anchor, d_pool, upstream * second if wants_factor else None, None, None, None


def _part(x: Tensor, rows: slice) -> Tensor:
    """x[rows], without the time that takes where rows are all."""
    return x if rows.start == 0 and rows.stop == len(x) else x[rows]


def _lifted(problem: _Problem, lse: Tensor, second: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the statistics as the backward kernel takes them, a and b. Then ∂L/∂s is

        e^φ φ' a;    with an expectation e^φ (φ' (a + b s) + b), or e^φ (φ' a + b) where its weights are fixed;
        with another total base' (a e^φ + b e^φ2)

    With a constant shift e^φ is e^{φ - most}, and a and b make up for it; in the first case b is what a is multiplied by.
    """
    phi = problem.phi
    if problem.what == _ONE:
        return a, second
    if problem.answers == 2 and problem.what == _AND_EXPECTATION and not problem.fixed:
        a = a - b * second
    if phi.shared:
        lift = torch.exp(phi.upper_bound - lse)
        a = a * lift
        if problem.what == _AND_ANOTHER:
            a = a * phi.times
            b = b * (torch.exp(problem.most2 - second) * problem.times2)
        else:
            b = b * lift
    return a.contiguous(), b.contiguous()


def _forward(
    problem: _Problem, z: Tensor, p: Tensor, rows: slice, columns: slice, d: int, gather: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Total, second total and, with `gather`, the mean of slope times column, of one run."""
    z, p = _part(z, rows), _part(p, columns)
    tile = tile_of(problem.precision, GATHER if gather else FORWARD, len(z), d)
    launch = Launch(tile, z, p, d, problem.precision)
    out, second = z.new_empty((2, launch.splits, launch.n), dtype=torch.float32)
    mean = z.new_empty((launch.splits, launch.n, d), dtype=torch.float32) if gather else None
    launch(
        forward_kernel, *_ids(problem, rows, columns), *_row_data(problem, rows, z), out, second,
        out if mean is None else mean, numbers=problem.numbers, GATHER=gather, FAST=z.is_cuda, **problem.constants,
    )  # fmt: skip
    if launch.splits == 1:
        return out[0], second[0], None if mean is None else mean[0]
    of = {"SHARED": problem.phi.shared, "SECOND": problem.what}
    total, second = launch.joined(join_kernel, out, second, _LOG2E * problem.most, **of)
    if mean is not None:
        weight = torch.exp(out - total.masked_fill(total == -torch.inf, 0.0))
        mean = (weight[..., None] * mean).sum(0)
    return total, second, mean


def _backward(
    problem: _Problem, z: Tensor, p: Tensor, rows: slice, columns: slice, saved: tuple[Tensor, ...], out: Tensor,
    *, own: bool, other: bool,
) -> None:  # fmt: skip
    """The gradient of some rows of z, written to `out`; with `own` they are anchors, with `other` the columns are."""
    d = out.shape[1]
    z, p = _part(z, rows), _part(p, columns)
    launch = Launch(tile_of(problem.precision, BACKWARD, len(out), d), z, p, d, problem.precision)
    anchors = rows if own else columns
    parts = out if launch.splits == 1 else out.new_empty((launch.splits, *out.shape))
    data = _row_data(problem, anchors, z)
    ids = _ids(problem, rows, columns) if own else _ids(problem, columns, rows)[::-1]
    launch(
        backward_kernel, *ids, *data, *(_part(x, anchors) for x in saved), parts, numbers=problem.numbers,
        OWN=own, OTHER=other, FIXED=problem.fixed, FAST=z.is_cuda,
        **problem.constants | {"SECOND": problem.what if problem.answers == 2 else _ONE},
    )  # fmt: skip
    if launch.splits > 1:
        torch.sum(parts, 0, out=out)


def _ids(problem: _Problem, anchors: slice, pool: slice) -> tuple[Tensor, Tensor]:
    return _part(problem.selection.anchor_id, anchors), _part(problem.selection.pool_id, pool)


def _row_data(problem: _Problem, anchors: slice, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Factors (read only where there is no constant shift), thresholds and shares of ties; anything where they are not read."""
    factors, cut = like, (like, like)
    if problem.phi.factor is not None:
        factors = _part(problem.phi.factor.detach(), anchors).contiguous()
    elif not problem.phi.shared:
        factors = like.new_full((anchors.stop - anchors.start,), problem.phi.times, dtype=torch.float32)
    if problem.cut is not None:
        cut = _part(problem.cut[0], anchors), _part(problem.cut[1], anchors)
    return factors, *cut


def _thresholds(z: Tensor, p: Tensor, selection: Selection, precision: str) -> tuple[Tensor, Tensor] | None:
    """The similarity of each anchor's k-th hardest negative, and the share that ties with it count for; k in all.

    Eight thresholds are counted in a pass and the one interval kept: after eight passes it is narrower than float32 tells apart.
    """
    if selection.hardest is None:
        return None
    wanted = selection.chosen(torch.int64)
    problem = _Problem(Exponent(), selection, precision, None)
    at = torch.full((len(z),), -1.01, device=z.device)
    width = 2.02
    for _ in range(8):
        width /= 8
        reached = _counted(problem, z, p, at, width) >= wanted[:, None]
        at = at + width * (reached.sum(1) - 1).clamp(min=0)
    counts = _counted(problem, z, p, at - BAND.value, 2 * BAND.value)
    above, ties = counts[:, 1], counts[:, 0] - counts[:, 1]
    return at, ((wanted - above) / ties.clamp(min=1)).clamp(0, 1).float()


def _counted(problem: _Problem, z: Tensor, p: Tensor, start: Tensor, step: float) -> Tensor:
    """(n, 8): how many negatives are at or above start + k · step."""
    counts = torch.empty((len(z), 8), dtype=torch.int64, device=z.device)
    for rows, columns in problem.selection.runs:
        launch = Launch(COUNT, _part(z, rows), _part(p, columns), z.shape[1], problem.precision)
        parts = counts.new_empty((launch.splits, launch.n, 8), dtype=torch.int32)
        launch(count_kernel, *_ids(problem, rows, columns), _part(start, rows), parts, numbers=(step,))
        counts[rows] = parts.sum(0)
    return counts
