"""Kernel requests: statistics grouped by their exponent, the negatives that they cover, and their gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from contrapose.reduce.block import Selection
from contrapose.reduce.engine import Operands
from contrapose.reduce.exponent import Exponent, exponent
from contrapose.reduce.logit import Logit, Scale
from contrapose.reduce.statistics import Count, Expectation, LogSumExp, Statistic
from contrapose.reduce.unit import same_tensor

LOG2E = math.log2(math.e)
# The kernels' SECOND: sum only Σ e^φ; or also Σ s e^φ; or also Σ e^φ2 for another multiple φ2 of φ.
TOTAL, TOTAL_AND_EXPECTATION, TWO_TOTALS = range(3)


@dataclass(eq=False)
class Group:
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


def group_by_exponent(statistics: tuple[Statistic, ...], anchor: Tensor) -> list[Group | None] | None:
    """Return the group of each statistic (None for a count); None if kernels cannot compute one of them."""
    known: list[tuple[Logit, Group]] = []
    groups: list[Group | None] = []
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
            matches = [Group(phi, phi.factor if statistic.logit.learned is not None else None)]
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
    # Comparing tensors by value would wait for the device, so tensor factors count as equal only in the same logit object.
    has_tensor = any(isinstance(logit, Scale) and isinstance(logit.factor, Tensor) for logit in (one, two))
    return one is two or (not has_tensor and one == two)


def share_exponential(one: Group, two: Group) -> bool:
    """Whether one pass can compute both log-sum-exps (hard negatives: exponents (β + 1) s / τ and β s / τ)."""
    no_expectation = one.expectation is None and two.expectation is None
    return no_expectation and one.phi.is_bounded and two.phi.is_bounded and one.phi.is_multiple_of(two.phi)


@dataclass(frozen=True, eq=False)
class KernelRequest:
    """The statistics that one kernel call computes, and the negatives that they cover."""

    phi: Exponent
    selection: Selection
    precision: str
    width: int  # d, of the embeddings before they were padded
    hardest: tuple[Tensor, Tensor] | None = None  # (n,) each: thresholds of the hardest negatives, and their number
    guide: Operands | None = None  # of a guide whose similarities the selection's ceiling limits
    sums: int = TOTAL
    fixed_weights: bool = False  # whether an expectation's weights carry no gradient
    times2: float = 0.0
    returns_expectation: bool = False  # false if only a learned factor's gradient needs it

    @property
    def output_count(self) -> int:
        """Return the number of statistics that the caller requested."""
        return 2 if self.returns_expectation or self.sums == TWO_TOTALS else 1

    @property
    def constants(self) -> dict[str, Any]:
        """Return the compile-time arguments that both kernels share."""
        return {
            **self.phi.constants,
            "SECOND": self.sums,
            "HARDEST_ONLY": self.hardest is not None,
            "CEILING": 0 if self.selection.ceiling is None else 1 if self.guide is None else 2,
        }

    @property
    def shift2(self) -> float:
        """Return the constant shift of the second total; 0 if there is none."""
        return replace(self.phi, times=self.times2).upper_bound if self.sums == TWO_TOTALS else 0.0

    @property
    def numbers(self) -> tuple[float, ...]:
        """Return the kernels' scalar arguments, with exponents in base 2."""
        phi, times, shifts = self.phi, (self.phi.times, self.times2), (self.phi.shift, self.shift2)
        return (
            *(LOG2E * x for x in times),
            *phi.numbers,
            *(LOG2E * x for x in shifts),
        )


def scaled_gradients(
    request: KernelRequest, lse: Tensor, second: Tensor, a: Tensor, b: Tensor
) -> tuple[Tensor, Tensor]:
    """Scale the gradients a and b of the statistics, (n,) each, for the backward kernel. It computes ∂L/∂s as

        one total             e^φ φ' a
        and an expectation    e^φ (φ' (a + b s) + b), or e^φ (φ' a + b) if its weights are fixed
        two totals            (s / τ)' (a e^φ + b e^φ2)

    Kernels with a constant shift compute e^{φ - shift} instead of the softmax weight e^{φ - lse}; a and b compensate for
    the difference. For one total the kernel does so itself, with b = 1 / Σ e^{φ - shift}.
    """
    phi = request.phi
    if request.sums == TOTAL:
        return a, second
    if request.output_count == 2 and request.sums == TOTAL_AND_EXPECTATION and not request.fixed_weights:
        a = a - b * second
    if phi.is_bounded:
        correction = torch.exp(phi.upper_bound - lse)
        a = a * correction
        if request.sums == TWO_TOTALS:
            a = a * phi.times
            b = b * (torch.exp(request.shift2 - second) * request.times2)
        else:
            b = b * correction
    return a.contiguous(), b.contiguous()


def part(x: Tensor, rows: slice) -> Tensor:
    """Return x[rows]; x itself if `rows` covers all of x, since even a slice takes microseconds on the host."""
    return x if rows.start == 0 and rows.stop == x.shape[0] else x[rows]


def ids_of(request: KernelRequest, anchors: slice, pool: slice) -> tuple[Tensor, Tensor]:
    """Return the sample ids of some anchors and some pool rows."""
    return part(request.selection.anchor_id, anchors), part(request.selection.pool_id, pool)


def row_data(request: KernelRequest, anchors: slice, unused: Tensor) -> tuple[Tensor, Tensor]:
    """Return factors and thresholds, (n,) each; `unused` replaces those that kernels do not read."""
    factors, threshold = unused, unused
    if request.phi.factor is not None:
        factors = part(request.phi.factor.detach(), anchors).contiguous()
    elif not request.phi.is_bounded:
        factors = unused.new_full((anchors.stop - anchors.start,), request.phi.times, dtype=torch.float32)
    if request.hardest is not None:
        threshold = part(request.hardest[0], anchors)
    elif request.selection.ceiling is not None:
        threshold = part(request.selection.ceiling.limit, anchors).to(torch.float32).contiguous()
    return factors, threshold


def kernel_operands(anchor: Tensor, pool: Tensor, precision: str, bf16_anchor: Tensor | None, width: int) -> Operands:
    """Return anchors and pool in kernel form, `width` coordinates wide; if both are one tensor, so are the results."""
    same = same_tensor(anchor, pool)
    first = anchor if bf16_anchor is None or precision != "bf16" or not same else bf16_anchor
    z = _operand(first, precision, width)
    return Operands(anchor, pool, z, z if same else _operand(pool, precision, width))


def _operand(z: Tensor, precision: str, width: int) -> Tensor:
    """Round z to the precision of the products and pad it with zeros."""
    z, d = z.detach().to(torch.bfloat16 if precision == "bf16" else torch.float32), z.shape[1]
    # Triton's interpreter has no bf16 products: on the CPU it gets float32 numbers, rounded to bf16.
    z = z if z.is_cuda else z.float()
    return torch.nn.functional.pad(z, (0, width - d)) if width > d else z.contiguous()
