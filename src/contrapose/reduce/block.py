"""A block of the similarity matrix: some anchors against all their candidates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

ALL = slice(None)


@dataclass(frozen=True)
class Block:
    """Similarities of `b` anchors to `c` pool rows, and which of those are no negatives."""

    rows: slice  # which anchors
    similarity: Tensor  # (b, c)
    drop: Tensor | None  # (b, c) bool: true where the pool row does not count; None: all count
    anchor_view: Tensor | None = None  # (b, 1)
    pool_view: Tensor | None = None  # (1 or b, c); -1: a stored row, which belongs to no view
    pool: slice = field(default_factory=lambda: ALL)  # which pool rows the columns are…
    columns: Tensor | None = None  # …and, where each anchor has chosen its own, which of those: (b, c)

    def without(self, drop: Tensor) -> Block:
        """The same block with more entries dropped."""
        return replace(self, drop=drop if self.drop is None else self.drop | drop)

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


@dataclass(frozen=True, eq=False)
class Selection:
    """A simple choice of negatives, such as kernels can make: rows with another id and, of those, the hardest."""

    anchor_id: Tensor  # (n,)
    pool_id: Tensor  # (m,)
    runs: list[tuple[slice, slice]]  # which anchors meet which pool rows; no row is in two of them
    hardest: Callable[[Tensor], Tensor] | None = None  # from an anchor's number of negatives to how many of them count

    def contiguous(self) -> Selection:
        """The same, laid out as kernels read it."""
        return replace(self, anchor_id=self.anchor_id.contiguous(), pool_id=self.pool_id.contiguous())

    def chosen(self, dtype: torch.dtype) -> Tensor:
        """(n,): how many negatives count."""
        count = torch.empty_like(self.anchor_id)
        for rows, columns in self.runs:
            ids = self.pool_id[columns].sort().values
            own = torch.searchsorted(ids, self.anchor_id[rows], right=True) - torch.searchsorted(
                ids, self.anchor_id[rows]
            )
            count[rows] = len(ids) - own
        return (count if self.hardest is None else self.hardest(count)).to(dtype)


class Source(Protocol):
    """Anything whose rows can be reduced: pairs with a choice of negatives, or given similarities."""

    @property
    def anchor(self) -> Tensor | None:
        """(n, d); None where similarities are given."""

    @property
    def pool(self) -> Tensor | None:
        """(m, d)."""

    @property
    def spans(self) -> list[tuple[int, int, int]]:
        """(first anchor, end, candidates): the runs of anchors that share their candidates, in order."""

    @property
    def selection(self) -> Selection | None:
        """Which pool rows count, where that is simple."""

    @property
    def half_precision(self) -> bool:
        """Whether the embeddings came in half precision."""

    @property
    def bf16_anchor(self) -> Tensor | None:
        """(n, d): anchors, which are the pool too, in bf16, where somebody has made that already."""

    def similarity(self, rows: slice, *, bf16: bool = False) -> Tensor:
        """Some anchors of one run against its candidates, before any choice: the part that costs. `bf16`: of bf16 products."""

    def block(self, rows: slice, similarity: Tensor) -> Block:
        """The same with its negatives chosen."""
