"""Which negatives count: the `negatives=` of an objective.

A pool row of another image is a negative. A choice narrows that, and choices apply one after the other:

    negatives=None                              all of them
    negatives=other_views()                     CLIP, SimCSE, MoCo v3: only rows of other views
    negatives=same_view()                       align-uniform, CACR as printed: only rows of the anchor's view
    negatives=hardest(4095)                     Wang & Liu, Eq. 9: the most similar ones of each anchor
    negatives=(other_views(), hardest(0.1))     the hardest tenth of those in other views

Rows of a queue or a bank belong to no view, so both view choices keep them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from contrapose.reduce import Block
from contrapose.validate import check_number, check_values, values_may_be_read

STORED = -1  # the view of a row that comes from a queue or a bank


class Choice(ABC):
    """Narrows a block to fewer negatives; subclass it for a choice of your own."""

    @abstractmethod
    def __call__(self, block: Block) -> Block:
        """The block with fewer negatives."""


Negatives: TypeAlias = Choice | tuple[Choice, ...] | None


def narrow(block: Block, chosen: tuple[Choice, ...], *, may_be_empty: bool = False) -> Block:
    """Apply choices one after the other; unless it may be empty, every anchor must have a negative left."""
    for choice in chosen:
        block = choice(block)
    if chosen and not may_be_empty:
        names = ", then ".join(repr(choice) for choice in chosen)
        check_values(block.count() > 0, lambda: f"negatives: {names} leaves an anchor without negatives")
    return block


def steps(negatives: Negatives) -> tuple[Choice, ...]:
    """The choices as a tuple; anything else is refused."""
    chosen = () if negatives is None else negatives if isinstance(negatives, tuple) else (negatives,)
    for choice in chosen:
        if not isinstance(choice, Choice):
            raise ValueError(
                f"negatives: expected None, other_views(), same_view(), hardest(…) or a tuple of them, got {choice!r}"
            )
    return chosen


@dataclass(frozen=True, repr=False)
class ViewChoice(Choice):
    """Keep the rows of the anchor's own view, or of the others."""

    same: bool

    def __call__(self, block: Block) -> Block:
        """The block with fewer negatives."""
        own, pool = block.anchor_view, block.pool_view
        if own is None or pool is None:
            raise ValueError(f"negatives: {self!r} needs views, but pairs made from similarity values have none")
        return block.without(((own != pool) & (pool != STORED)) if self.same else own == pool)

    def __repr__(self) -> str:
        return "same_view()" if self.same else "other_views()"


@dataclass(frozen=True, repr=False)
class OriginChoice(Choice):
    """Keep the rows of a queue or bank, or those of the batch."""

    stored: bool

    def __call__(self, block: Block) -> Block:
        """The block with fewer negatives."""
        if block.pool_view is None:
            raise ValueError("negatives: pairs made from similarity values do not say where a row comes from")
        return block.without((block.pool_view != STORED) if self.stored else (block.pool_view == STORED))

    def __repr__(self) -> str:
        return "stored_rows()" if self.stored else "batch_rows()"


@dataclass(frozen=True, repr=False)
class Hardest(Choice):
    """Keep each anchor's most similar negatives: a number of them, or a share."""

    k: int | None = None
    fraction: float | None = None

    def __call__(self, block: Block) -> Block:
        """The block with fewer negatives: exactly k columns, in falling order of similarity."""
        candidates = block.similarity.shape[1]
        wanted = self.of(block.count(), candidates)
        k = self.k if self.k is not None else _ceil(self.fraction or 0.0, candidates)
        # The choice itself carries no gradient; the chosen similarities do.
        ranked = block.fill(block.similarity.detach().clone(), -torch.inf).topk(k, dim=1)
        similarity = block.similarity.gather(1, ranked.indices)
        drop: Tensor | None = None
        if self.k is None:
            drop = torch.arange(k, device=similarity.device) >= wanted[:, None]
        elif not values_may_be_read(ranked.values):  # then what is no negative must still not count
            drop = ranked.values == -torch.inf
        columns = ranked.indices if block.columns is None else block.columns.gather(1, ranked.indices)
        pool_view = _chosen(block, ranked.indices)
        return replace(block, similarity=similarity, drop=drop, pool_view=pool_view, columns=columns)

    def of(self, count: Tensor, candidates: int) -> Tensor:
        """How many of its `count` negatives count for each anchor."""
        if self.k is None:
            return torch.ceil(count.double() * (self.fraction or 0.0) - 1e-6).clamp(min=1).minimum(count)
        if self.k > candidates:
            raise ValueError(f"negatives: hardest(k={self.k}) asks for more than the {candidates} rows there are")
        check_values(
            count >= self.k,
            lambda: (
                f"negatives: hardest(k={self.k}) asks for more negatives than an anchor has "
                f"({int(count.min())} of {candidates} rows are negatives)"
            ),
        )
        return torch.full_like(count, self.k).minimum(count)

    def __repr__(self) -> str:
        return f"hardest({self.k})" if self.k is not None else f"hardest(fraction={self.fraction})"


def _ceil(fraction: float, count: int) -> int:
    # 0.1 * 30 is a little above 3 in binary; the tolerance keeps ⌈αn⌉ what a person expects.
    return max(1, math.ceil(fraction * count - 1e-6))


def _chosen(block: Block, indices: Tensor) -> Tensor | None:
    if block.pool_view is None:
        return None
    return block.pool_view.expand(block.similarity.shape).gather(1, indices)


def other_views() -> ViewChoice:
    """Only rows of other views than the anchor's (the `cross` set of CLIP, SimCSE and MoCo v3)."""
    return ViewChoice(same=False)


def same_view() -> ViewChoice:
    """Only rows of the anchor's own view (align-uniform, CACR as printed)."""
    return ViewChoice(same=True)


def stored_rows() -> OriginChoice:
    """Only rows of a queue or a bank."""
    return OriginChoice(stored=True)


def batch_rows() -> OriginChoice:
    """Only rows of the batch itself."""
    return OriginChoice(stored=False)


def hardest(k: int | float | None = None, *, fraction: float | None = None) -> Hardest:
    """Each anchor's k most similar negatives, or the share ⌈αn⌉ of its n (Wang & Liu, Eq. 8-9).

    The positive is not among them. (The authors' code counts it in, k + 1 with it: the same once it is among its anchor's k + 1.)
    The count is exact: among ties at the threshold, as many are kept as make up k; kernels on a GPU keep all of them (those
    within 1e-6) with that share of their weight, which is the same value. `hardest(0.1)` is `hardest(fraction=0.1)`.

    >>> hardest(4095)
    hardest(4095)
    >>> hardest(0.0819)
    hardest(fraction=0.0819)
    """
    if isinstance(k, float) and fraction is None:
        k, fraction = None, k
    if (k is None) == (fraction is None):
        raise ValueError(f"hardest: expected either k or fraction, got k={k!r} and fraction={fraction!r}")
    if fraction is not None:
        check_number("hardest: fraction", fraction, above=0.0, most=1.0)
    else:
        check_number("hardest: k", k, least=1)
    return Hardest(k if k is None else int(k), fraction)
