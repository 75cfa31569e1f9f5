"""Labels of anchors and candidates, and the choice of candidates by label."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from contrapose.pairs.kinds import AnyPairs
from contrapose.pairs.negatives import Choice
from contrapose.reduce import Block, group_counts
from contrapose.validate import check_values, received_integers

UNLABELLED = -1  # any label below 0: such a sample shares its label with no other
_UNLABELLED_ANCHOR = -2  # differs from UNLABELLED, so that comparing labels never matches two unlabelled samples


@dataclass(frozen=True, eq=False)
class Labels:
    """Labels of the anchors and of the pool; two labels match only if both are known and equal."""

    anchor: Tensor  # (n,) int64
    pool: Tensor  # (m,)
    same_label_count: Tensor  # (n,): number of candidates from other samples with the anchor's label

    def same(self) -> LabelChoice:
        """Keep the candidates of other samples with the anchor's label."""
        return LabelChoice(self, True)

    def other(self) -> LabelChoice:
        """Keep the candidates with another label, or without a label."""
        return LabelChoice(self, False)


@dataclass(frozen=True, eq=False, repr=False)
class LabelChoice(Choice):
    """Keeps the rows with the anchor's label, or all other rows."""

    labels: Labels
    keeps_same: bool

    def __call__(self, block: Block) -> Block:
        """Return the block with fewer negatives."""
        pool = self.labels.pool[block.pool]
        pool = pool[None] if block.columns is None else pool[block.columns]
        same = self.labels.anchor[block.rows, None] == pool
        return block.without(~same if self.keeps_same else same)

    def for_rows(self, rows: slice) -> LabelChoice:
        """Return the same choice for a subset of the anchors."""
        return replace(self, labels=replace(self.labels, anchor=self.labels.anchor[rows]))

    def __repr__(self) -> str:
        return "same_label()" if self.keeps_same else "other_labels()"


def match_labels(pairs: AnyPairs, labels: Tensor, stored_labels: Tensor | None) -> Labels:
    """Return the label of each anchor and candidate: a candidate in the batch has the label of the anchors with its sample id.

    `labels` are (samples,) or (n,); `stored_labels` (stored,) are the labels of a queue's or a bank's rows. Queue rows
    may be unlabelled.
    """
    if pairs.anchor_id is None or pairs.pool_id is None:
        raise ValueError(
            "pairs: labels belong to samples, but similarity values do not say which samples they compare: "
            "expected the result of two_views, views, cross, queue or bank"
        )
    anchors = pairs.shape[0]
    _check("labels", labels, anchors // pairs.view_count, anchors)
    anchor = labels.to(pairs.anchor_id.device).long()
    anchor = anchor if len(anchor) == anchors else anchor.repeat(pairs.view_count)
    own, _ = _lookup(pairs.anchor_id, anchor, pairs.anchor_id)
    pool, in_batch = _lookup(pairs.anchor_id, anchor, pairs.pool_id)
    given = torch.cat([_stored(pairs, stored_labels, pool), pool[pairs.stored :]])
    check_values(
        torch.cat([own == anchor, ~in_batch | (given == pool)]),
        lambda: "labels: expected one label per sample, got two different labels for the same sample id",
    )
    unknown = anchor < 0
    count = torch.empty_like(anchor)
    for rows, columns in pairs.candidate_runs:
        own_rows = group_counts(pairs.pool_id[columns], pairs.anchor_id[rows])
        count[rows] = group_counts(given[columns], anchor[rows]) - own_rows
    return Labels(
        anchor.masked_fill(unknown, _UNLABELLED_ANCHOR),
        given.masked_fill(given < 0, UNLABELLED),
        count.masked_fill(unknown, 0),
    )


def _lookup(ids: Tensor, labels: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Return the labels of the samples `wanted` (UNLABELLED if not in `ids`), and which of these samples are in `ids`."""
    # By binary search: comparing all pairs of ids would store an n × m matrix.
    ordered, order = ids.sort(stable=True)
    position = torch.searchsorted(ordered, wanted.contiguous()).clamp(max=len(ids) - 1)
    found = ordered[position] == wanted
    return torch.where(found, labels[order][position], UNLABELLED), found


def _stored(pairs: AnyPairs, stored_labels: Tensor | None, from_batch: Tensor) -> Tensor:
    """Return the labels of the stored rows, (stored,)."""
    assert pairs.pool_id is not None
    if stored_labels is not None:
        if not pairs.stored:
            raise ValueError("stored_labels: expected None, since these pairs have no rows from a queue or a bank")
        _check("stored_labels", stored_labels, pairs.stored)
        return stored_labels.to(pairs.pool_id.device).long()
    # Queue rows have an id that no sample has. Bank rows are samples, and without labels all bank rows outside the batch
    # would be negatives.
    check_values(
        pairs.pool_id[: pairs.stored] < 0,
        lambda: f"stored_labels: expected the labels of the bank's {pairs.stored} rows, got None",
    )
    return from_batch[: pairs.stored]


def _check(name: str, labels: Tensor, *lengths: int) -> None:
    expected = " or ".join(f"({length},)" for length in dict.fromkeys(lengths))
    if not isinstance(labels, Tensor) or labels.ndim != 1 or len(labels) not in lengths:
        received = received_integers(name, labels)
        raise ValueError(f"{name}: expected one integer per sample, shape {expected}, got {received}")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"{name}: expected integers, got {labels.dtype}")
