"""Pairs with a choice of negatives, ready to be reduced: what stands between `pairs` and `reduce`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from contrapose.negatives import Choice, Hardest, narrow
from contrapose.reduce import ALL, Block, Selection
from contrapose.unit import matmul

if TYPE_CHECKING:
    from contrapose.pairs import Pairs, Similarities


@dataclass(frozen=True)
class Given:
    """Given similarities with a choice of negatives, ready to be reduced."""

    given: Similarities
    negatives: tuple[Choice, ...]
    may_be_empty: bool
    anchor: None = None
    pool: None = None
    selection: None = None
    low = False
    rounded = None

    @property
    def spans(self) -> list[tuple[int, int, int]]:
        return [(0, *self.given.shape)]

    def similarity(self, rows: slice, *, low: bool = False) -> Tensor:
        return self.given.negative[rows]

    def block(self, rows: slice, similarity: Tensor) -> Block:
        given = self.given
        own = None if given.own is None else given.own[rows]
        view = None if given.anchor_view is None else given.anchor_view[rows, None]
        pool_view = None if given.pool_view is None else given.pool_view[None]
        return narrow(Block(rows, similarity, own, view, pool_view), self.negatives, may_be_empty=self.may_be_empty)


@dataclass(frozen=True)
class Compared:
    """Pairs with a choice of negatives, ready to be reduced."""

    pairs: Pairs
    negatives: tuple[Choice, ...]
    may_be_empty: bool

    @property
    def anchor(self) -> Tensor:
        return self.pairs.anchor

    @property
    def pool(self) -> Tensor:
        return self.pairs.pool

    @property
    def spans(self) -> list[tuple[int, int, int]]:
        return [(0, *self.pairs.shape)]

    @property
    def low(self) -> bool:
        return self.pairs.low

    @property
    def rounded(self) -> Tensor | None:
        return self.pairs.rounded

    @property
    def selection(self) -> Selection | None:
        hardest = self.negatives[0] if len(self.negatives) == 1 else None
        if self.negatives and not isinstance(hardest, Hardest):
            return None
        met = [(slice(start, end), self.candidates(slice(start, end))) for start, end, _ in self.spans]
        runs = [(rows, slice(*columns.indices(len(self.pool))[:2])) for rows, columns in met]
        of = (lambda count: hardest.of(count, self.spans[0][2])) if isinstance(hardest, Hardest) else None
        return Selection(self.pairs.anchor_image, self.pairs.pool_image, runs, of)

    def candidates(self, rows: slice) -> slice:
        return ALL

    def similarity(self, rows: slice, *, low: bool = False) -> Tensor:
        return matmul(self.anchor[rows], self.pool[self.candidates(rows)].T, low=low)

    def block(self, rows: slice, similarity: Tensor) -> Block:
        pairs, pool = self.pairs, self.candidates(rows)
        own = pairs.anchor_image[rows, None] == pairs.pool_image[pool]
        if not self.negatives:
            return Block(rows, similarity, own, pool=pool)
        block = Block(rows, similarity, own, pairs.anchor_view[rows, None], pairs.pool_view[None, pool], pool)
        return narrow(block, self.negatives, may_be_empty=self.may_be_empty)


@dataclass(frozen=True)
class ViewByView(Compared):
    """The same where each view meets only itself, or only the other: the rest of the matrix is not computed."""

    same: bool

    @property
    def spans(self) -> list[tuple[int, int, int]]:
        m = len(self.anchor) // self.pairs.views
        return [(start, start + m, m) for start in range(0, len(self.anchor), m)]

    def candidates(self, rows: slice) -> slice:
        m = len(self.anchor) // self.pairs.views
        view = rows.start // m if self.same else 1 - rows.start // m
        return slice(view * m, (view + 1) * m)
