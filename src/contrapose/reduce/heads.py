"""Heads combine the sums over negatives with the positives: each head is a loss of two views and its derivatives.

With a few thousand samples the GPU waits for the CPU. So a head is part of the loss's own autograd function and, on a GPU, a
single kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from contrapose.reduce.statistics import softplus

Number = float | Tensor
Numbers = tuple[Tensor | None, Tensor | None]  # gradients of scale and bias


class Head(Protocol):
    """The mean loss over anchors as a function of their statistics and of the similarities to their positives."""

    def forward(self, value: Tensor, similarity: Tensor, *, in_kernels: bool) -> tuple[Tensor, Tensor]:
        """Return the loss and rows (n,): one unused, then derivatives by the statistics, by s⁺ and by learned numbers."""

    def of_statistics(self, derivative: Tensor) -> Tensor:
        """Return the gradient of the statistics from their row of derivatives."""

    def of_numbers(self, rows: Sequence[Tensor], of_statistics: Tensor | None) -> Numbers:
        """Return the gradients of scale and bias, from their rows and from the gradients that the engine returned."""


@dataclass(frozen=True, eq=False)
class CrossEntropy:
    """log(1 + e^{lse - scale · s⁺}), with the log-sum-exp over negatives."""

    scale: Number

    def forward(self, value: Tensor, similarity: Tensor, *, in_kernels: bool) -> tuple[Tensor, Tensor]:
        """Return the mean loss; the statistics are log-sum-exps (n,)."""
        if in_kernels:
            from contrapose.reduce.head_kernels import cross_entropy  # imported late, since it needs Triton

            rows = cross_entropy(value, similarity, self.scale)
            return rows[0].sum(), rows
        assert isinstance(self.scale, float)
        gap = torch.sub(value, similarity[:, 0], alpha=self.scale)
        weight = torch.sigmoid(gap).mul_(1 / len(gap))
        return softplus(gap).mean(), torch.stack([gap, weight, weight * -self.scale])

    def of_statistics(self, derivative: Tensor) -> Tensor:
        """Return the gradient of the log-sum-exps, (n,)."""
        return derivative

    def of_numbers(self, rows: Sequence[Tensor], of_statistics: Tensor | None) -> Numbers:
        """Return the gradient of the scale: through the log-sum-exps, and through the positives."""
        return None if of_statistics is None else (rows[0] + of_statistics).sum(), None


@dataclass(frozen=True, eq=False)
class Sigmoid:
    """softplus(-(scale · s⁺ + bias)) + Σ_j softplus(scale · s_j + bias), with the sum over negatives of all anchors."""

    numbers: Tensor  # (2,): scale and bias

    def forward(self, value: Tensor, similarity: Tensor, *, in_kernels: bool) -> tuple[Tensor, Tensor]:
        """Return the mean loss; the statistic is the sum over all negatives."""
        from contrapose.reduce.head_kernels import sigmoid_loss  # imported late, since it needs Triton

        rows = sigmoid_loss(similarity, self.numbers)
        return torch.add(rows[0].sum(), value, alpha=1 / len(similarity)), rows

    def of_statistics(self, derivative: Tensor) -> Tensor:
        """Return the gradient of the sum, a scalar: it is the same for all anchors."""
        return derivative[0]

    def of_numbers(self, rows: Sequence[Tensor], of_statistics: Tensor | None) -> Numbers:
        """Return the gradients of scale and bias."""
        if of_statistics is None:
            return None, None
        d_scale, d_bias = of_statistics.unbind()
        return d_scale + rows[0].sum(), d_bias + rows[1].sum()
