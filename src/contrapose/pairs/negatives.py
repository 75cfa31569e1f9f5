"""Choices of negatives: the `negatives=` argument of an objective.

Every pool row of another sample is a negative. A choice keeps some of them; several choices apply in order:

    negatives=None                              all negatives
    negatives=other_views()                     CLIP, SimCSE, MoCo v3: only rows of other views
    negatives=same_view()                       align-uniform, CACR's paper: only rows of the anchor's view
    negatives=hardest(4095)                     Wang & Liu, Eq. 9: each anchor's most similar negatives
    negatives=(other_views(), hardest(0.1))     the hardest tenth of the negatives in other views
    negatives=guided(two_views(g1, g2))         GISTEmbed: without negatives that another model finds too similar
    negatives=self_guided(margin=0.1)           Qwen3-Embedding: without negatives more similar than the positive by a margin

Rows of a queue or a bank belong to no view, so both view choices keep them.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from contrapose.reduce import Block, Ceiling
from contrapose.validate import check_number, check_values, values_may_be_read

STORED = -1  # view id of rows in a queue or a bank
_REPORTED: set[Hardest] = set()  # choices for which this process has said that some anchors have too few negatives


class Choice(ABC):
    """Keeps some of a block's negatives; subclass it for a choice of your own."""

    may_leave_none = False  # whether an anchor may be left without negatives: no error if the loss is still defined

    @abstractmethod
    def __call__(self, block: Block) -> Block:
        """Return the block with fewer negatives."""

    def for_rows(self, rows: slice) -> Choice:
        """Return the same choice for a subset of the anchors, whose rows then count from 0."""
        return self

    def check_shape(self, anchors: int, candidates: int) -> None:
        """Raise ValueError if the choice is for another number of anchors or candidates."""
        return

    def ceiling(self) -> Ceiling | None:
        """Return the choice as a ceiling of similarities, which kernels can compute; None if it is none."""
        return None

    def of_positives(self, positives: Callable[[], Tensor]) -> Choice:
        """Return the choice for anchors with these similarities to their positives, (n, k); most choices read none."""
        return self


Negatives: TypeAlias = Choice | tuple[Choice, ...] | None


def narrow(block: Block, chosen: tuple[Choice, ...], *, may_be_empty: bool = False) -> Block:
    """Apply choices in order; raise ValueError if that leaves an anchor without negatives, unless `may_be_empty`."""
    for choice in chosen:
        block = choice(block)
    if chosen and not may_be_empty:
        check_has_negatives(block.count(), chosen)
    return block


def check_has_negatives(count: Tensor, chosen: tuple[Choice, ...]) -> None:
    """Raise ValueError if the choices leave an anchor without negatives."""
    names = ", then ".join(repr(choice) for choice in chosen)
    check_values(
        count > 0,
        lambda: f"negatives: {names} leaves an anchor without negatives: expected at least one for every anchor",
    )


def may_leave_none(negatives: Negatives) -> bool:
    """Return whether one of the choices may leave some anchors without negatives."""
    return any(choice.may_leave_none for choice in steps(negatives))


def choices_of(negatives: Negatives, shape: tuple[int, int], positives: Callable[[], Tensor]) -> tuple[Choice, ...]:
    """Return the choices for pairs of this shape whose anchors have these positives; raise ValueError for any other shape."""
    chosen = tuple(choice.of_positives(positives) for choice in steps(negatives))
    for choice in chosen:
        choice.check_shape(*shape)
    return chosen


def steps(negatives: Negatives) -> tuple[Choice, ...]:
    """Return the choices as a tuple; raise ValueError for anything else."""
    chosen = () if negatives is None else negatives if isinstance(negatives, tuple) else (negatives,)
    for choice in chosen:
        if not isinstance(choice, Choice):
            raise ValueError(
                "negatives: expected None, other_views(), same_view(), hardest(…), guided(…), self_guided(…) or a tuple of "
                f"them, got {choice!r}"
            )
    return chosen


@dataclass(frozen=True, repr=False)
class ViewChoice(Choice):
    """Keeps the rows of the anchor's own view, or the rows of all other views."""

    same: bool

    def __call__(self, block: Block) -> Block:
        """Return the block with fewer negatives."""
        anchor, pool = block.anchor_view, block.pool_view
        if anchor is None or pool is None:
            raise ValueError(f"negatives: {self!r} needs views, but pairs made from similarity values have none")
        # STORED equals no anchor's view, so that `anchor == pool` keeps stored rows.
        return block.without(((anchor != pool) & (pool != STORED)) if self.same else anchor == pool)

    def __repr__(self) -> str:
        return "same_view()" if self.same else "other_views()"


@dataclass(frozen=True, repr=False)
class OriginChoice(Choice):
    """Keeps the rows from a queue or bank, or the rows from the batch."""

    stored: bool

    def __call__(self, block: Block) -> Block:
        """Return the block with fewer negatives."""
        if block.pool_view is None:
            raise ValueError(
                f"negatives: {self!r} needs to know which rows are stored, but pairs made from similarity values do not record it"
            )
        return block.without((block.pool_view != STORED) if self.stored else (block.pool_view == STORED))

    def __repr__(self) -> str:
        return "stored_rows()" if self.stored else "batch_rows()"


@dataclass(frozen=True, repr=False)
class Hardest(Choice):
    """Keeps each anchor's most similar negatives: `k` of them, or all if there are fewer; or a fraction."""

    k: int | None = None
    fraction: float | None = None
    strict: bool = False  # whether an anchor with fewer than k negatives is an error

    def __call__(self, block: Block) -> Block:
        """Return a block with k columns per anchor, in descending order of similarity."""
        candidates = block.similarity.shape[1]
        if self.keeps_all(candidates):
            return block
        kept, is_complete = self._kept_count(block.count(), candidates)
        return keep_hardest(block, None if is_complete else kept, self.most(candidates))

    def most(self, candidates: int) -> int:
        """Return the largest number of negatives that an anchor can keep, out of so many candidates."""
        return self.k if self.k is not None else _ceil(self.fraction or 0.0, candidates)

    def keeps_all(self, candidates: int) -> bool:
        """Return whether there are fewer than k candidates, so that every negative is kept; report it once."""
        if self.k is None or self.k <= candidates:
            return False
        self._report(f"the pool has {candidates} rows")
        return True

    def kept_count(self, count: Tensor, candidates: int) -> Tensor:
        """Return the number of negatives that each anchor keeps, (b,), out of the `count` (b,) that it has."""
        return self._kept_count(count, candidates)[0]

    def _kept_count(self, count: Tensor, candidates: int) -> tuple[Tensor, bool]:
        """Return the number of negatives that each anchor keeps, and whether it is known to be k for all of them."""
        if self.k is None:
            # In float64: 0.72 · 75 is above 54 in float32, and its ceiling 55. The tolerance is that of `_ceil`.
            return torch.ceil(count.double() * (self.fraction or 0.0) - 1e-6).clamp(min=1).minimum(count), False
        readable = values_may_be_read(count)
        is_complete = readable and bool((count >= self.k).all())
        if readable and not is_complete:
            self._report(f"an anchor has {int(count.min())}, and the pool has {candidates} rows")
        return count.clamp(max=self.k), is_complete

    def _report(self, reason: str) -> None:
        """Say once that some anchors have fewer than k negatives; raise ValueError if the choice is strict."""
        if self.strict:
            raise ValueError(f"negatives: {self!r} needs {self.k} negatives for every anchor, but {reason}")
        # Warnings would break the graph that torch.compile traces.
        if self not in _REPORTED and not torch.compiler.is_compiling():
            _REPORTED.add(self)
            warnings.warn(
                f"negatives: {self!r} keeps all negatives of an anchor that has fewer than {self.k}: {reason}, as in a smaller "
                f"last batch. This warning appears once; hardest({self.k}, strict=True) raises an error instead",
                stacklevel=2,
            )

    def __repr__(self) -> str:
        strict = ", strict=True" if self.strict else ""
        return f"hardest({self.k}{strict})" if self.k is not None else f"hardest(fraction={self.fraction})"


def keep_hardest(block: Block, kept: Tensor | None, k: int) -> Block:
    """Return a block with each anchor's `kept` (b,) hardest negatives, in k columns; without `kept`, all of them keep k."""
    # topk needs one k for all rows: anchors that keep fewer drop the rest. The choice itself carries no gradient; the chosen
    # similarities do.
    ranked = block.fill(block.similarity.detach().clone(), -torch.inf).topk(k, dim=1)
    similarity = block.similarity.gather(1, ranked.indices)
    drop = None if kept is None else torch.arange(k, device=similarity.device) >= kept[:, None]
    columns = ranked.indices if block.columns is None else block.columns.gather(1, ranked.indices)
    pool_view = _views_of_columns(block, ranked.indices)
    return replace(block, similarity=similarity, drop=drop, pool_view=pool_view, columns=columns)


def _ceil(fraction: float, count: int) -> int:
    # 0.1 · 30 is a little above 3 in binary; with the tolerance ⌈αn⌉ is what one computes by hand.
    return max(1, math.ceil(fraction * count - 1e-6))


def _views_of_columns(block: Block, indices: Tensor) -> Tensor | None:
    if block.pool_view is None:
        return None
    return block.pool_view.expand(block.similarity.shape).gather(1, indices)


def other_views() -> ViewChoice:
    """Keep only rows from views other than the anchor's (the cross-view negatives of CLIP, SimCSE and MoCo v3)."""
    return ViewChoice(same=False)


def same_view() -> ViewChoice:
    """Keep only rows from the anchor's own view (align-uniform, CACR's paper)."""
    return ViewChoice(same=True)


def stored_rows() -> OriginChoice:
    """Keep only rows from a queue or a bank."""
    return OriginChoice(stored=True)


def batch_rows() -> OriginChoice:
    """Keep only rows from the batch itself."""
    return OriginChoice(stored=False)


def hardest(k: int | float | None = None, *, fraction: float | None = None, strict: bool = False) -> Hardest:
    """Keep each anchor's k most similar negatives, or a fraction α of its n negatives, ⌈αn⌉ (Wang & Liu, Eq. 8-9).

    An anchor with fewer than k negatives, as in a smaller last batch, keeps all of them; a warning says so once.
    The positive is not one of the k. (The authors' code takes the k + 1 most similar rows including the positive, which is
    the same if the positive is one of those rows.) The count is exact: of the negatives that tie at the threshold, only
    enough to reach k are kept. GPU kernels keep all ties (within 1e-6) with weights that add up to the same count, which
    gives the same loss. `hardest(0.1)` is `hardest(fraction=0.1)`.

    k          number of negatives to keep; a number below 1 is a fraction
    fraction   α, the fraction to keep, instead of k
    strict     whether an anchor with fewer than k negatives is an error

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
    if not isinstance(strict, bool) or (strict and k is None):
        raise ValueError(f"hardest: strict: expected True or False, and True only with a number k, got {strict!r}")
    return Hardest(k if k is None else int(k), fraction, strict)
