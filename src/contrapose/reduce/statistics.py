"""Statistics of an anchor's negatives: one number per anchor, and its derivative with respect to each similarity."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from contrapose.reduce.block import Block
from contrapose.reduce.logit import Logit

# ∂L/∂s (b, c), or None for zero, then ∂L/∂t (b,) for each tensor t of `learned_tensors`, or None for one that is None.
Gradient = tuple[Tensor | None, ...]


class Statistic(Protocol):
    """A function of a block's rows, (b, c) -> (b,), or (b, k)."""

    def __call__(self, block: Block) -> Tensor:
        """Return one number per row, by differentiable operations."""

    def backward(self, block: Block, value: Tensor, gradient: Tensor) -> Gradient:
        """Return gradients from the value and ∂L/∂value, (b,) each, without the copies that autograd would keep."""

    @property
    def logit(self) -> Logit | None:
        """The exponent of the softmax weights, if any; a statistic with an exponent is a dataclass with the field `logit`."""


class AnchorStatistic(ABC):
    """A statistic with data of its own for each anchor."""

    @abstractmethod
    def for_rows(self, rows: slice) -> Any:
        """Return the same statistic for a subset of the anchors."""


S = TypeVar("S", bound="Statistic")


def of_rows(statistics: Iterable[S], rows: slice | Tensor, change: Callable[[Tensor], Tensor]) -> list[S]:
    """Return the same statistics for a subset of the anchors, whose rows then count from 0.

    Learned tensors are replaced by `change(tensor)`. Statistics that share an exponent share it afterwards, too: kernels
    compute them in one pass.
    """
    logits: dict[int, Logit] = {}
    restricted = []
    for statistic in statistics:
        if statistic.logit is not None:
            key = id(statistic.logit)
            if key not in logits:
                logits[key] = statistic.logit.map_learned(change).for_rows(rows)
            statistic = replace(statistic, logit=logits[key])  # type: ignore[type-var]
        if isinstance(statistic, AnchorStatistic):
            assert isinstance(rows, slice)  # a ring, whose rows are not contiguous, refuses such statistics
            statistic = statistic.for_rows(rows)
        if isinstance(statistic, SoftplusSum) and statistic.learned_bias is not None:
            statistic = replace(statistic, bias=change(statistic.learned_bias))
        restricted.append(statistic)
    return restricted


def learned_tensors(statistic: Statistic) -> tuple[Tensor | None, ...]:
    """Return the tensors, besides the similarities, for which `backward` returns gradients; None for those without grad."""
    factor = None if statistic.logit is None else statistic.logit.learned
    return (factor, statistic.learned_bias) if isinstance(statistic, SoftplusSum) else (factor,)


def softplus(x: Tensor) -> Tensor:
    """Return log(1 + e^x), exact in float64: torch's default returns x above 20, where e^{-x} is not negligible yet."""
    return torch.nn.functional.softplus(x, threshold=40.0)


def _finite(log_total: Tensor) -> Tensor:
    """Replace -inf, the total of an anchor without negatives, by a finite number, so that its weights are 0, not NaN."""
    return log_total.clamp(min=torch.finfo(log_total.dtype).min)


@dataclass(frozen=True)
class LogSumExp:
    """log Σ_j exp φ(s_ij)."""

    logit: Logit

    def __call__(self, block: Block) -> Tensor:
        """Return one number per row."""
        logits = self.logit(block.similarity, block.rows)
        if logits.requires_grad:
            # Dropped entries get a finite number: if a whole row were -inf, its gradient would be NaN instead of zero.
            lowest = torch.finfo(logits.dtype).min / 2
            total = torch.logsumexp(block.fill(logits, lowest), dim=1)
            return total.masked_fill(total < lowest / 2, -torch.inf) if block.drop is not None else total
        logits = block.fill(logits, -torch.inf)
        # Without autograd the logits may be overwritten; torch.logsumexp would allocate another (b, c) tensor.
        top = _finite(logits.amax(1, keepdim=True))
        return logits.sub_(top).exp_().sum(1).log().add_(top[:, 0])

    def backward(self, block: Block, value: Tensor, gradient: Tensor) -> Gradient:
        """∂L/∂φ_j = g · softmax_j."""
        logits = block.fill(self.logit(block.similarity, block.rows), -torch.inf)
        # The value is the logarithm of the softmax's denominator, so that no second reduction is needed.
        weight = logits.sub_(_finite(value)[:, None]).exp_()
        return self.logit.backward(block.similarity, weight.mul_(gradient[:, None]), block.rows)


@dataclass(frozen=True)
class SoftplusSum:
    """Σ_j log(1 + e^{φ(s_ij) + bias}): the sigmoid loss of the negatives; 0 for an anchor without negatives."""

    logit: Logit
    bias: float | Tensor = 0.0  # a number, or a tensor without dimensions, which may be learned

    def __call__(self, block: Block) -> Tensor:
        """Return one number per row."""
        return softplus(self._logits(block)).sum(1)

    def backward(self, block: Block, value: Tensor, gradient: Tensor) -> Gradient:
        """∂L/∂φ_j = g · sigmoid(φ_j + bias), ∂L/∂bias = Σ_j ∂L/∂φ_j."""
        d_logits = self._logits(block).sigmoid_().mul_(gradient[:, None])
        # The bias first: the logit's `backward` overwrites its argument.
        d_bias = None if self.learned_bias is None else d_logits.sum(1)
        return *self.logit.backward(block.similarity, d_logits, block.rows), d_bias

    @property
    def learned_bias(self) -> Tensor | None:
        """The bias, if it requires grad."""
        return self.bias if isinstance(self.bias, Tensor) and self.bias.requires_grad else None

    def _logits(self, block: Block) -> Tensor:
        """Return φ + bias, -inf where entries are dropped: softplus and sigmoid are exactly 0 there."""
        # A float64 bias without dimensions does not promote a float32 block, but its device has to match.
        bias = self.bias.to(block.similarity) if isinstance(self.bias, Tensor) else self.bias
        return block.fill(self.logit(block.similarity, block.rows) + bias, -torch.inf)


@dataclass(frozen=True)
class Expectation:
    """Σ_j w_ij s_ij with w_i = softmax_j φ(s_ij); `detach` stops the gradient through the weights."""

    logit: Logit
    detach: bool = False

    def __call__(self, block: Block) -> Tensor:
        """Return one number per row."""
        return (self._weight(block) * block.similarity).sum(1)

    def backward(self, block: Block, value: Tensor, gradient: Tensor) -> Gradient:
        """∂L/∂s_j = g w_j, and through the weights ∂L/∂φ_j = g w_j (s_j - value)."""
        direct = self._weight(block).mul_(gradient[:, None])
        if self.detach:
            return direct, None
        through, learned = self.logit.backward(
            block.similarity, (block.similarity - value[:, None]).mul_(direct), block.rows
        )
        return direct.add_(through), learned

    def _weight(self, block: Block) -> Tensor:
        logits = block.fill(self.logit(block.similarity, block.rows), -torch.inf)
        weight = torch.exp(logits - _finite(torch.logsumexp(logits, 1, keepdim=True)))
        return weight.detach() if self.detach else weight


@dataclass(frozen=True)
class Sum:
    """Σ_j φ(s_ij)."""

    logit: Logit

    def __call__(self, block: Block) -> Tensor:
        """Return one number per row."""
        logits = self.logit(block.similarity, block.rows)
        return (logits if block.drop is None else logits.masked_fill(block.drop, 0.0)).sum(1)

    def backward(self, block: Block, value: Tensor, gradient: Tensor) -> Gradient:
        """∂L/∂φ_j = g for every negative."""
        per_negative = gradient[:, None].expand(block.similarity.shape)
        # A new tensor in both cases, because the logit overwrites it.
        d_logits = per_negative.clone() if block.drop is None else per_negative.masked_fill(block.drop, 0.0)
        return self.logit.backward(block.similarity, d_logits, block.rows)


@dataclass(frozen=True)
class Mean:
    """The mean similarity."""

    logit = None

    def __call__(self, block: Block) -> Tensor:
        """Return one number per row."""
        s = block.similarity
        total = s.sum(1) if block.drop is None else s.masked_fill(block.drop, 0.0).sum(1)
        return total / block.count()

    def backward(self, block: Block, value: Tensor, gradient: Tensor) -> Gradient:
        """g / count for every negative."""
        per_negative = (gradient / block.count())[:, None].expand(block.similarity.shape)
        # A new tensor in both cases, because the caller adds other statistics' gradients to it in place.
        return per_negative.clone() if block.drop is None else per_negative.masked_fill(block.drop, 0.0), None


@dataclass(frozen=True)
class SumOfSquares:
    """Σ_j s_ij²."""

    logit = None

    def __call__(self, block: Block) -> Tensor:
        """Return one number per row."""
        square = block.similarity.square()
        return (square if block.drop is None else square.masked_fill(block.drop, 0.0)).sum(1)

    def backward(self, block: Block, value: Tensor, gradient: Tensor) -> Gradient:
        """2 g s for every negative."""
        d_similarity = block.similarity * (2 * gradient)[:, None]
        return d_similarity if block.drop is None else d_similarity.masked_fill_(block.drop, 0.0), None


@dataclass(frozen=True)
class Maximum:
    """The largest similarity."""

    logit = None

    def __call__(self, block: Block) -> Tensor:
        """Return one number per row."""
        return block.fill(block.similarity.clone(), -torch.inf).amax(1)

    def backward(self, block: Block, value: Tensor, gradient: Tensor) -> Gradient:
        """g for the largest similarity, divided equally between ties."""
        s = block.fill(block.similarity.clone(), -torch.inf)
        top = (s == value[:, None]).to(s.dtype)
        # At least 1: if the value of a row is NaN, no entry equals it.
        return top.mul_((gradient / top.sum(1).clamp(min=1))[:, None]), None


@dataclass(frozen=True)
class Nearest:
    """The k largest similarities in descending order, (b, k); -inf if there are fewer."""

    k: int
    logit = None

    def __call__(self, block: Block) -> Tensor:
        """Return k numbers per row."""
        missing = max(0, self.k - block.similarity.shape[1])
        return torch.nn.functional.pad(self._top(block).values, (0, missing), value=-torch.inf)

    def backward(self, block: Block, value: Tensor, gradient: Tensor) -> Gradient:
        """g, scattered to the columns of the k largest."""
        indices = self._top(block).indices
        return torch.zeros_like(block.similarity).scatter_(1, indices, gradient[:, : indices.shape[1]]), None

    def _top(self, block: Block) -> torch.return_types.topk:
        # Computed again in the backward pass: saved indices would take twice the memory of the values.
        return block.fill(block.similarity.clone(), -torch.inf).topk(min(self.k, block.similarity.shape[1]), dim=1)


@dataclass(frozen=True)
class Count:
    """The number of negatives."""

    logit = None

    def __call__(self, block: Block) -> Tensor:
        """Return one number per row."""
        return block.count()

    def backward(self, block: Block, value: Tensor, gradient: Tensor) -> Gradient:
        """No gradient: a count is constant."""
        return None, None
