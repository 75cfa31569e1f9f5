"""Merge statistics of several parts of an anchor's negatives into statistics of all of them, with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from contrapose.reduce.statistics import (
    Count,
    Expectation,
    LogSumExp,
    Maximum,
    Mean,
    Nearest,
    SoftplusSum,
    Statistic,
    Sum,
    SumOfSquares,
)


@dataclass(frozen=True, eq=False)
class MergePlan:
    """The statistics to compute of each part, and how they are merged.

    An expectation is weighted by its log-sum-exp and a mean by its count, which are computed in addition.
    """

    wanted: tuple[Statistic, ...]
    computed: tuple[Statistic, ...]  # those wanted come first
    weights: tuple[int | None, ...]  # for each one wanted, where its weight is among those computed

    @classmethod
    def of(cls, wanted: Sequence[Statistic]) -> MergePlan:
        """Return the plan for these statistics; raise ValueError if one of them cannot be merged."""
        computed, weights = list(wanted), list[int | None]()
        for statistic in wanted:
            if not isinstance(statistic, _MERGED):
                names = ", ".join(known.__name__ for known in _MERGED)
                raise ValueError(
                    f"{type(statistic).__name__}: cannot be merged from parts of the negatives: expected one of {names}"
                )
            weight = _weight_of(statistic)
            if weight is None:
                weights.append(None)
                continue
            # The same logit, by identity: tensors in it would have to be compared by value.
            same = (
                i for i, other in enumerate(computed) if type(other) is type(weight) and other.logit is weight.logit
            )
            index = next(same, len(computed))
            if index == len(computed):
                computed.append(weight)
            weights.append(index)
        return cls(tuple(wanted), tuple(computed), tuple(weights))

    def merge(self, parts: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return every wanted statistic, (n,) or (n, k), from the parts of those computed, (parts, n) or (parts, n, k)."""
        return tuple(
            _merge(statistic, parts[i], None if weight is None else parts[weight])
            for i, (statistic, weight) in enumerate(zip(self.wanted, self.weights, strict=True))
        )


_MERGED = (LogSumExp, Expectation, Mean, Sum, SoftplusSum, Count, Maximum, Nearest, SumOfSquares)


def _weight_of(statistic: Statistic) -> Statistic | None:
    """Return the statistic by which the parts of this one are weighted."""
    if isinstance(statistic, Expectation):
        return LogSumExp(statistic.logit)
    return Count() if isinstance(statistic, Mean) else None


def _merge(statistic: Statistic, values: Tensor, weight: Tensor | None) -> Tensor:
    if isinstance(statistic, LogSumExp):
        return _log_sum_exp(values)
    if isinstance(statistic, Expectation):
        assert weight is not None
        logs = weight.detach() if statistic.detach else weight
        lowest = (
            torch.finfo(logs.dtype).min / 2
        )  # finite, so that an anchor without negatives has weights of 0, not NaN
        return (torch.exp(logs - _log_sum_exp(logs).clamp(min=lowest)) * values).sum(0)
    if isinstance(statistic, Mean):
        assert weight is not None
        # The mean of a part without negatives is 0 / 0.
        return values.masked_fill(weight == 0, 0.0).mul(weight).sum(0) / weight.sum(0)
    if isinstance(statistic, Maximum):
        return values.amax(0)
    if isinstance(statistic, Nearest):
        return values.transpose(0, 1).flatten(1).topk(statistic.k, dim=1).values
    return values.sum(0)


def _log_sum_exp(values: Tensor) -> Tensor:
    """Return the log-sum-exp over parts; where every part is -inf, it is -inf with a zero gradient, and not NaN."""
    lowest = torch.finfo(values.dtype).min / 2
    total = values.clamp(min=lowest).logsumexp(0)
    return total.masked_fill((values == -torch.inf).all(0), -torch.inf)
