"""Statistics of negatives that are weighted from outside: by a guide's similarities, or by given numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from contrapose.reduce.block import Block
from contrapose.reduce.logit import Logit
from contrapose.reduce.statistics import AnchorStatistic, Gradient


@dataclass(frozen=True, eq=False)
class GuideProducts:
    """Weights that kernels compute from products g of a guide's rows: e^{g / τ}, or g itself without a temperature."""

    anchor: Tensor  # (n, e)
    pool: Tensor  # (m, e)
    temperature: float | None
    bound: float  # upper bound of |g|; inf if unknown


class Scores(ABC):
    """A number for every anchor and candidate, computed block by block."""

    @abstractmethod
    def __call__(self, block: Block) -> Tensor:
        """Return the numbers of a block, (b, c), without gradient."""

    @abstractmethod
    def for_rows(self, rows: slice) -> Scores:
        """Return the same numbers for a subset of the anchors."""

    def guide_products(self) -> GuideProducts | None:
        """Return the products from which e^score can be computed; None if scores are not made of them."""
        return None


@dataclass(frozen=True)
class SoftSums(AnchorStatistic):
    """Three numbers (b, 3) of weights w_j = e^{v_j}: log Σ_j w_j, Σ_j w_j φ(s_j) / Σ_j w_j and Σ_j w_j v_j / Σ_j w_j.

    Only the second has a gradient. Without any weight they are -inf, 0 and 0. The third, for the entropy of the weights, is 0
    unless it is asked for.
    """

    logit: Logit
    log_weights: Scores
    with_entropy: bool = False

    def __call__(self, block: Block) -> Tensor:
        """Return three numbers per row."""
        values, log_total, weight = self._weights(block)
        mean = (weight * self.logit(block.similarity, block.rows)).sum(1)
        # 0 · log 0 is 0.
        own = (weight * values.masked_fill(weight == 0, 0.0)).sum(1) if self.with_entropy else torch.zeros_like(mean)
        return torch.stack([log_total, mean, own], 1)

    def backward(self, block: Block, value: Tensor, gradient: Tensor) -> Gradient:
        """∂L/∂φ_j = g w_j / Σ w."""
        _, _, weight = self._weights(block)
        return self.logit.backward(block.similarity, weight.mul_(gradient[:, 1:2]), block.rows)

    def for_rows(self, rows: slice) -> SoftSums:
        """Return the same statistic for a subset of the anchors."""
        return replace(self, log_weights=self.log_weights.for_rows(rows))

    @torch.no_grad()
    def _weights(self, block: Block) -> tuple[Tensor, Tensor, Tensor]:
        """Return v (b, c), log Σ w (b,) and w / Σ w (b, c)."""
        values = block.fill(self.log_weights(block).to(block.similarity), -torch.inf)
        log_total = values.logsumexp(1)
        lowest = torch.finfo(values.dtype).min  # finite, so that the weights of an anchor without any are 0, not NaN
        return values, log_total, torch.exp(values - log_total.clamp(min=lowest)[:, None])


@dataclass(frozen=True)
class Differences(AnchorStatistic):
    """The mean of d_j = s_j - v_j - `offset` over the negatives, and the mean of d_j², (b, 2)."""

    scores: Scores
    offset: Tensor  # (n,), without gradient
    logit = None

    def __call__(self, block: Block) -> Tensor:
        """Return two numbers per row."""
        difference = self._difference(block)
        return torch.stack([difference.sum(1), difference.square().sum(1)], 1) / block.count()[:, None]

    def backward(self, block: Block, value: Tensor, gradient: Tensor) -> Gradient:
        """∂L/∂s_j = (g₁ + 2 g₂ d_j) / count."""
        gradient = gradient / block.count()[:, None]
        d_similarity = self._difference(block).mul_(2 * gradient[:, 1:]).add_(gradient[:, :1])
        return block.fill(d_similarity, 0.0), None

    def for_rows(self, rows: slice) -> Differences:
        """Return the same statistic for a subset of the anchors."""
        return replace(self, scores=self.scores.for_rows(rows), offset=self.offset[rows])

    def _difference(self, block: Block) -> Tensor:
        """Return d, (b, c); 0 where entries are dropped."""
        given = self.scores(block).to(block.similarity) + self.offset[block.rows, None]
        difference = block.similarity - given
        return difference if block.drop is None else difference.masked_fill(block.drop, 0.0)
