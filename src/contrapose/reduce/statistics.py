"""What can be asked of an anchor's negatives: one number for each anchor, and how it moves with each similarity."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from contrapose.reduce.block import Block
from contrapose.reduce.logit import Logit

# ∂L/∂s (b, c), or None for zero, and ∂L/∂factor (b,) of the statistic's logit where that is learned.
Gradient = tuple[Tensor | None, Tensor | None]


class Statistic(Protocol):
    """A function of a block's rows, (b, c) -> (b,), or (b, k)."""

    def __call__(self, block: Block) -> Tensor:
        """One number for each row, by operations that autograd can follow."""

    def back(self, block: Block, value: Tensor, gradient: Tensor) -> Gradient:
        """From the value and ∂L/∂value, (b,) each, without autograd's copies."""

    @property
    def logit(self) -> Logit | None:
        """The exponent it weighs with, if any; a statistic with one is a dataclass that has it as a field."""


def of_rows(statistic: Statistic, rows: slice) -> Statistic:
    """The same statistic of some anchors alone."""
    if statistic.logit is None:
        return statistic
    made: Statistic = replace(statistic, logit=statistic.logit.of(rows))  # type: ignore[type-var]
    return made


def _finite(log_total: Tensor) -> Tensor:
    """A number in place of -inf, the total of an anchor without negatives: its weights are then 0, not NaN."""
    return log_total.clamp(min=torch.finfo(log_total.dtype).min)


@dataclass(frozen=True)
class LogSumExp:
    """log Σ_j exp φ(s_ij)."""

    logit: Logit

    def __call__(self, block: Block) -> Tensor:
        """One number for each row."""
        logits = block.fill(self.logit(block.similarity, block.rows), -torch.inf)
        if logits.requires_grad:
            return torch.logsumexp(logits, dim=1)
        top = _finite(logits.amax(1, keepdim=True))  # the same, without a copy
        return logits.sub_(top).exp_().sum(1).log().add_(top[:, 0])

    def back(self, block: Block, value: Tensor, gradient: Tensor) -> Gradient:
        """∂L/∂φ_j = g · softmax_j."""
        logits = block.fill(self.logit(block.similarity, block.rows), -torch.inf)
        weight = logits.sub_(_finite(value)[:, None]).exp_()
        return self.logit.back(block.similarity, weight.mul_(gradient[:, None]), block.rows)


@dataclass(frozen=True)
class Expectation:
    """Σ_j w_ij s_ij with w_i = softmax_j φ(s_ij); `detach` stops the gradient through the weights."""

    logit: Logit
    detach: bool = False

    def __call__(self, block: Block) -> Tensor:
        """One number for each row."""
        return (self._weight(block) * block.similarity).sum(1)

    def back(self, block: Block, value: Tensor, gradient: Tensor) -> Gradient:
        """∂L/∂s_j = g w_j, and through the weights ∂L/∂φ_j = g w_j (s_j - value)."""
        direct = self._weight(block).mul_(gradient[:, None])
        if self.detach:
            return direct, None
        through, learned = self.logit.back(
            block.similarity, (block.similarity - value[:, None]).mul_(direct), block.rows
        )
        return direct.add_(through), learned

    def _weight(self, block: Block) -> Tensor:
        logits = block.fill(self.logit(block.similarity, block.rows), -torch.inf)
        weight = torch.exp(logits - _finite(torch.logsumexp(logits, 1, keepdim=True)))
        return weight.detach() if self.detach else weight


@dataclass(frozen=True)
class Mean:
    """The mean similarity."""

    logit = None

    def __call__(self, block: Block) -> Tensor:
        """One number for each row."""
        s = block.similarity
        total = s.sum(1) if block.drop is None else s.masked_fill(block.drop, 0.0).sum(1)
        return total / block.count()

    def back(self, block: Block, value: Tensor, gradient: Tensor) -> Gradient:
        """g / count for every negative."""
        each = (gradient / block.count())[:, None].expand(block.similarity.shape)
        return each.clone() if block.drop is None else each.masked_fill(block.drop, 0.0), None


@dataclass(frozen=True)
class Maximum:
    """The largest similarity."""

    logit = None

    def __call__(self, block: Block) -> Tensor:
        """One number for each row."""
        return block.fill(block.similarity.clone(), -torch.inf).amax(1)

    def back(self, block: Block, value: Tensor, gradient: Tensor) -> Gradient:
        """g, shared between ties."""
        s = block.fill(block.similarity.clone(), -torch.inf)
        top = (s == value[:, None]).to(s.dtype)
        return top.mul_((gradient / top.sum(1).clamp(min=1))[:, None]), None


@dataclass(frozen=True)
class Nearest:
    """The k largest similarities, in falling order: (b, k); -inf where there are fewer."""

    k: int
    logit = None

    def __call__(self, block: Block) -> Tensor:
        """k numbers for each row."""
        return self._top(block).values

    def back(self, block: Block, value: Tensor, gradient: Tensor) -> Gradient:
        """g, where the value came from."""
        return torch.zeros_like(block.similarity).scatter_(1, self._top(block).indices, gradient), None

    def _top(self, block: Block) -> torch.return_types.topk:
        return block.fill(block.similarity.clone(), -torch.inf).topk(self.k, dim=1)


@dataclass(frozen=True)
class Count:
    """How many negatives there are."""

    logit = None

    def __call__(self, block: Block) -> Tensor:
        """One number for each row."""
        return block.count()

    def back(self, block: Block, value: Tensor, gradient: Tensor) -> Gradient:
        """A number of things does not move."""
        return None, None
