"""A block of the similarity matrix: some anchors against all their candidates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Block:
    """Similarities of `b` anchors to `c` pool rows, and which of those are no negatives."""

    rows: slice  # which anchors
    similarity: Tensor  # (b, c)
    drop: Tensor | None  # (b, c) bool: true where the pool row does not count; None: all count
    anchor_view: Tensor | None  # (b, 1)
    pool_view: Tensor | None  # (1 or b, c); -1: a stored row, which belongs to no view

    def without(self, drop: Tensor) -> Block:
        """The same block with more entries dropped."""
        drop = drop if self.drop is None else self.drop | drop
        return Block(self.rows, self.similarity, drop, self.anchor_view, self.pool_view)

    def fill(self, values: Tensor, value: float) -> Tensor:
        """`values` (b, c), freshly computed, with `value` written in place where entries are dropped.

        Autograd is not told: every statistic that calls this gives those entries a weight of exactly zero, so
        their gradient is zero already and no mask has to be kept for the backward pass.
        """
        if self.drop is not None:
            with torch.no_grad():
                values.masked_fill_(self.drop, value)
        return values

    def count(self) -> Tensor:
        """Number of negatives of each anchor, (b,)."""
        columns = self.similarity.shape[1]
        if self.drop is None:
            return self.similarity.new_full((self.similarity.shape[0],), columns)
        return (columns - self.drop.sum(1)).to(self.similarity.dtype)


class Source(Protocol):
    """Anything whose rows can be reduced: `Pairs` with a choice of negatives, or given similarities."""

    @property
    def shape(self) -> tuple[int, int]:
        """Anchors, candidates."""

    def block(self, rows: slice) -> Block:
        """The rows of some anchors."""
