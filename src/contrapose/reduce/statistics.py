"""What can be asked of an anchor's negatives: one number for each anchor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from contrapose.reduce.block import Block
from contrapose.reduce.logit import Logit


class Statistic(Protocol):
    """A function of a block's rows, (b, c) -> (b,)."""

    def __call__(self, block: Block) -> Tensor:
        """One number for each row."""


@dataclass(frozen=True)
class LogSumExp:
    """log Σ_j exp φ(s_ij)."""

    logit: Logit

    def __call__(self, block: Block) -> Tensor:
        """One number for each row."""
        logits = block.fill(self.logit(block.similarity, block.rows), -torch.inf)
        return torch.logsumexp(logits, dim=1)


@dataclass(frozen=True)
class Expectation:
    """Σ_j w_ij s_ij with w_i = softmax_j φ(s_ij); `detach` stops the gradient through the weights."""

    logit: Logit
    detach: bool = False

    def __call__(self, block: Block) -> Tensor:
        """One number for each row."""
        s = block.similarity.detach() if self.detach else block.similarity
        weight = torch.softmax(block.fill(self.logit(s, block.rows), -torch.inf), dim=1)
        return (weight * block.similarity).sum(1)


@dataclass(frozen=True)
class Mean:
    """The mean similarity."""

    def __call__(self, block: Block) -> Tensor:
        """One number for each row."""
        s = block.similarity
        total = s.sum(1) if block.drop is None else s.masked_fill(block.drop, 0.0).sum(1)
        return total / block.count()


@dataclass(frozen=True)
class Maximum:
    """The largest similarity."""

    def __call__(self, block: Block) -> Tensor:
        """One number for each row."""
        return block.fill(block.similarity.clone(), -torch.inf).amax(1)


@dataclass(frozen=True)
class Count:
    """How many negatives there are."""

    def __call__(self, block: Block) -> Tensor:
        """One number for each row."""
        return block.count()
