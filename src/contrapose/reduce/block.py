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
    """Similarities of `b` anchors to `c` pool rows, with a mask of the pool rows that are not negatives."""

    rows: slice  # the anchors
    similarity: Tensor  # (b, c)
    drop: Tensor | None  # (b, c) bool: true where a pool row is not a negative; None if all rows are negatives
    anchor_view: Tensor | None = None  # (b, 1)
    pool_view: Tensor | None = None  # (1 or b, c); -1 for a row in a queue or a bank, which belongs to no view
    pool: slice = field(default_factory=lambda: ALL)  # the pool rows that the block covers
    columns: Tensor | None = (
        None  # (b, c): indices into the pool rows, if each anchor has its own columns; None: all rows, in order
    )

    def without(self, drop: Tensor) -> Block:
        """Return the block with more entries dropped."""
        return replace(self, drop=drop if self.drop is None else self.drop | drop)

    def fill(self, values: Tensor, value: float) -> Tensor:
        """Write `value` into `values` (b, c), in place, where entries are dropped, and return it.

        `values` must be freshly computed and owned by the caller.
        """
        # Hidden from autograd: every statistic that calls this gives dropped entries a weight of exactly zero, so their
        # gradient is zero already and no mask has to be saved for the backward pass.
        if self.drop is not None:
            with torch.no_grad():
                values.masked_fill_(self.drop, value)
        return values

    def count(self) -> Tensor:
        """Return the number of negatives of each anchor, (b,)."""
        columns = self.similarity.shape[1]
        if self.drop is None:
            return self.similarity.new_full((self.similarity.shape[0],), columns)
        return (columns - self.drop.sum(1)).to(self.similarity.dtype)


@dataclass(frozen=True, eq=False)
class Ceiling:
    """The largest similarity to an anchor with which a candidate is a negative, by the loss's own similarity or a guide's."""

    limit: Tensor  # (n,)
    guide: tuple[Tensor, Tensor] | None = None  # (n, e) and (m, e): rows of a guide whose products are limited
    check: Callable[[Tensor], None] | None = (
        None  # raises unless each anchor's number, (n,), is above 0: it has negatives
    )


@dataclass(frozen=True, eq=False)
class Selection:
    """A choice of negatives simple enough for kernels: rows with another id, and of them the hardest or those below a ceiling."""

    anchor_id: Tensor  # (n,)
    pool_id: Tensor  # (m,)
    runs: list[tuple[slice, slice]]  # (anchors, pool rows) that are compared; no anchor or pool row occurs in two runs
    hardest: Callable[[Tensor], Tensor] | None = None  # number of negatives -> number of the hardest to keep, (n,) each
    id_period: int = 1  # the id of each row is its number modulo this; 1 if ids are not known to be so
    ceiling: Ceiling | None = None

    @property
    def keeps_all(self) -> bool:
        """Whether every row with another id is a negative."""
        return self.hardest is None and self.ceiling is None

    def id_numbers(self, rows: slice, columns: slice) -> tuple[int, int]:
        """Return the period of the ids and the offset of columns from rows, so that kernels need not read the ids."""
        return self.id_period, (columns.start - rows.start) % self.id_period

    def contiguous(self) -> Selection:
        """Return the same selection with contiguous ids, which kernels require."""
        if self.anchor_id.is_contiguous() and self.pool_id.is_contiguous():
            return self
        return replace(self, anchor_id=self.anchor_id.contiguous(), pool_id=self.pool_id.contiguous())

    def kept_counts(self, dtype: torch.dtype) -> Tensor:
        """Return the number of negatives kept per anchor, (n,)."""
        count = torch.empty_like(self.anchor_id)
        for rows, columns in self.runs:
            # By binary search in sorted ids, O(m log m): comparing all pairs of ids would store an n × m matrix.
            ids = self.pool_id[columns].sort().values
            same_id = torch.searchsorted(ids, self.anchor_id[rows], right=True) - torch.searchsorted(
                ids, self.anchor_id[rows]
            )
            count[rows] = len(ids) - same_id
        return (count if self.hardest is None else self.hardest(count)).to(dtype)


@dataclass(frozen=True, eq=False)
class NestedPrefixes:
    """The embeddings whose prefixes a nested loss compares in the same way, and the sums that all prefixes share."""

    anchor: Tensor  # (n, d)
    pool: Tensor  # (m, d)
    bf16_anchor: Tensor | None  # as in `KernelInputs`
    widths: tuple[int, ...]
    computed: list[tuple[object, Selection, tuple[Tensor, ...]]] = field(default_factory=list)

    def totals(self, exponent: object, selection: Selection) -> tuple[Tensor, ...] | None:
        """Return the log-sum-exps of each prefix, (n,) each, if a prefix has already requested them for this exponent."""
        needs_grad = torch.is_grad_enabled() and (self.anchor.requires_grad or self.pool.requires_grad)
        for known, chosen, values in self.computed:
            if needs_grad != values[0].requires_grad:
                continue
            same_ids = chosen.anchor_id is selection.anchor_id and chosen.pool_id is selection.pool_id
            if same_ids and chosen.runs == selection.runs and known == exponent:
                return values
        return None


@dataclass(frozen=True, eq=False)
class Prefix:
    """One of several prefixes."""

    nested: NestedPrefixes
    index: int  # of its width
    anchor: Tensor  # (n, width)
    pool: Tensor  # (m, width)


@dataclass(frozen=True, eq=False)
class KernelInputs:
    """Known properties of embeddings, so that engines need not compute them again."""

    half_precision: bool = False  # whether they were in half precision before they were normalised
    bf16_anchor: Tensor | None = (
        None  # (n, d): the anchors in bf16, if they are also the pool and have already been rounded
    )
    id_period: int = 1  # the id of each anchor and pool row is its number modulo this; 1 if ids are not known to be so
    prefix: Prefix | None = None  # if anchors and pool are prefixes of embeddings of which others are compared, too


class Source(Protocol):
    """The input of `reduce_rows`: pairs with a choice of negatives, or similarity values."""

    @property
    def anchor(self) -> Tensor | None:
        """Anchors (n, d); None for a source of similarity values."""

    @property
    def pool(self) -> Tensor | None:
        """Candidates (m, d); None for a source of similarity values."""

    @property
    def spans(self) -> list[tuple[int, int, int]]:
        """(first anchor, end, number of candidates) of each run of anchors that share their candidates, in order."""

    @property
    def selection(self) -> Selection | None:
        """The choice of negatives in the form kernels read; None if it has no such form."""

    @property
    def kernel_inputs(self) -> KernelInputs:
        """Properties of the embeddings that kernels use in addition to their values."""

    def similarity(self, rows: slice, *, bf16: bool = False) -> Tensor:
        """Return similarities (b, c) of some anchors of one run to its candidates; `bf16` rounds the factors to bf16.

        Negatives are not chosen here: similarities are expensive, and may be kept for the backward pass.
        """

    def block(self, rows: slice, similarity: Tensor) -> Block:
        """Return these similarities as a block, with negatives chosen."""
