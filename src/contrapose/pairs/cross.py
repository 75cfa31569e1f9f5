"""`cross`: compare two sets of embeddings, such as images with texts or questions with answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from contrapose.pairs.build import within_raw_views, within_views
from contrapose.pairs.ids import sample_ids, stored_ids, views_by_count
from contrapose.pairs.pairs import Pairs
from contrapose.pairs.similarity import SIMILARITIES, comparable_rows
from contrapose.reduce import KernelInputs
from contrapose.reduce.hardware import is_half
from contrapose.reduce.unit import unit, units
from contrapose.validate import (
    check_choice,
    check_embeddings,
    check_same_shape,
    check_values,
    check_width,
    received_integers,
)

DIRECTIONS = ("a_to_b", "a_to_a", "b_to_a", "b_to_b")
_A_TO_B = ("a_to_b",)


def cross(
    a: Tensor,
    b: Tensor,
    *,
    symmetric: bool = False,
    directions: Sequence[str] = _A_TO_B,
    negatives: Tensor | None = None,
    negative_ids: Tensor | None = None,
    similarity: str = "cosine",
    ids: Tensor | None = None,
) -> Pairs:
    """Compare a_i with b_i, (m, d) each, with the other m - 1 rows of b as negatives: one direction (SimCSE, retrieval).

    a, b           embeddings (m, d) of the two sides; row i of both is a pair
    symmetric      both directions, each with its own sum: the rows of a and then the rows of b are anchors, 2m in total,
                   and only rows from the other side are negatives. The mean over anchors is CLIP's loss.
    directions     comparisons in the single sum over an anchor's negatives: "a_to_b", and any of "a_to_a" (a_i with other
                   rows of a), "b_to_a" (b_i with other rows of a) and "b_to_b". All four give the loss of GTE (Li et al.).
    negatives      explicit, usually hard, negatives (r, d), or k per sample (m, k, d), with gradient. They join the pool of
                   all anchors a_i (MultipleNegativesRanking) and, with "b_to_b", of all b_i.
    negative_ids   sample ids of `negatives`, (r,) or (m, k): a row with an anchor's id is not a negative of that anchor.
                   Without ids, rows are negatives of every anchor, except that "b_to_b" leaves out a sample's own (m, k, d).
    similarity     as in `two_views`; other than "cosine" only for "a_to_b", or for `symmetric` without explicit negatives
    ids            data-set index of each sample, (m,): rows with the same id are never negatives of each other

    With several directions there is one anchor per pair, and its softmax contains the positive once. The denominators of GTE
    and sentence-transformers contain the positive once for "a_to_b" and again for "b_to_a".

    >>> cross(torch.randn(4, 8), torch.randn(4, 8)).shape  # 4 anchors, 4 candidates
    (4, 4)
    >>> cross(torch.randn(4, 8), torch.randn(4, 8), negatives=torch.randn(4, 2, 8)).shape
    (4, 12)
    """
    check_embeddings("a", a, 2)
    check_embeddings("b", b, 2)
    check_same_shape("b", b, "a", a)
    explicit = _check_negatives(negatives, negative_ids, a)
    chosen = _check_directions(directions, symmetric)
    if similarity != "cosine":
        _check_unnormalised(similarity, chosen, symmetric and explicit is not None)
    if symmetric:
        return _both_ways(a, b, explicit, similarity, ids)
    return _one_sum(a, b, chosen, explicit, similarity, ids)


@dataclass(frozen=True)
class _Explicit:
    """Explicit negatives, (r, d), with their ids."""

    rows: Tensor
    ids: Tensor | None  # (r,)
    each: int | None  # k if there are k per sample, in the samples' order

    def pool_ids(self, sample: Tensor, *, of_same_side: bool = False) -> Tensor:
        """Return the rows' ids, (r,), in a pool whose samples have the ids `sample` (m,)."""
        ids = None if self.ids is None else self.ids.to(sample)
        if of_same_side and self.each is not None:
            own = sample.repeat_interleave(self.each)
            # A sample must not be compared with its own explicit negatives here, so they take the sample's id, unless their
            # given id belongs to a sample in the batch.
            return own if ids is None else torch.where(torch.isin(ids, sample), ids, own)
        return stored_ids(len(self.rows), sample) if ids is None else ids


def _both_ways(a: Tensor, b: Tensor, explicit: _Explicit | None, similarity: str, ids: Tensor | None) -> Pairs:
    """Treat the two sides as two views that are only compared with each other; explicit negatives belong to the second."""
    if similarity != "cosine":
        raw = within_raw_views(torch.stack([a, b]), similarity=similarity, ids=ids)
        return replace(raw, between_views_only=True)
    pairs = replace(within_views(a, b, ids=ids), between_views_only=True)
    if explicit is None:
        return pairs
    m, sample = len(a), _as_wide(pairs.anchor_id, explicit)
    # Placed after the rows of b, so that each side's candidates are contiguous.
    pool = torch.cat([pairs.anchor, unit(explicit.rows).to(pairs.anchor.dtype)])
    sides = [(0, m), (1, m)]
    return replace(
        pairs,
        pool=pool,
        anchor_id=sample,
        pool_id=torch.cat([sample, explicit.pool_ids(sample)]),
        view_ids=partial(views_by_count, sides, [*sides, (1, len(explicit.rows))], a.device),
        # The pool is no longer equal to the anchors, so their bf16 copy cannot be used for it.
        kernel_inputs=KernelInputs(pairs.kernel_inputs.half_precision and is_half(explicit.rows)),
    )


@dataclass(frozen=True)
class _PoolRows:
    """Pool rows, (r, d), with which one half of an anchor is compared."""

    rows: Tensor
    ids: Tensor
    of_b: bool  # whether the rows are compared with b_i instead of a_i
    view: int  # 0 if the rows come from the same side as the half that they are compared with, else 1


def _one_sum(
    a: Tensor, b: Tensor, directions: set[str], explicit: _Explicit | None, similarity: str, ids: Tensor | None
) -> Pairs:
    """Return pairs with one anchor per sample, whose negatives come from all directions."""
    m = len(a)
    sample = _as_wide(sample_ids(ids, m, a.device, allow_single=explicit is not None), explicit)
    extra = [] if explicit is None else [explicit.rows]
    half = is_half(a, b, *extra) and similarity == "cosine"
    if similarity == "cosine":
        a, b, *extra = units(a, b, *extra)
    else:
        a, rows = comparable_rows(similarity, a, torch.cat([b, *extra]))
        b, *extra = rows.split([m, *(len(z) for z in extra)])
    explicit = explicit and replace(explicit, rows=extra[0])
    pool = [
        rows
        for direction in DIRECTIONS
        if direction in directions
        for rows in _rows_of(direction, a, b, sample=sample, explicit=explicit)
    ]
    # Anchors with two halves, [a_i, b_i]: a pool row that is zero in one half is compared with the other half only.
    two_halves = any(rows.of_b for rows in pool)
    anchor = torch.cat([a, b], dim=1) if two_halves else a
    widened = [_widen(rows.rows, rows.of_b) if two_halves else rows.rows for rows in pool]
    pool_id = _joined([rows.ids for rows in pool])
    if explicit is not None and explicit.ids is not None:
        # Two different samples are negatives of each other; a single sample needs an explicit negative with another id.
        check_values(
            (pool_id != sample[0]).any(),
            lambda: f"negative_ids: all rows have the id {int(sample[0])}, so there are no negatives",
        )
    return Pairs(
        ids_are_positions=ids is None,
        anchor=anchor,
        positive_rows=b[:, None],
        pool=_joined(widened),
        anchor_id=sample,
        pool_id=pool_id,
        view_ids=partial(views_by_count, [(0, m)], [(rows.view, len(rows.rows)) for rows in pool], a.device),
        between_views_only=all(rows.view for rows in pool),
        kernel_inputs=KernelInputs(half, id_period=m if ids is None and len(pool_id) == m else 1),
        similarity=similarity,
    )


def _rows_of(direction: str, a: Tensor, b: Tensor, *, sample: Tensor, explicit: _Explicit | None) -> list[_PoolRows]:
    """Return the rows that one direction adds to the pool; explicit negatives count as rows of b."""
    of_b, into_b = direction.startswith("b"), direction.endswith("b")
    view = int(of_b != into_b)
    rows = [_PoolRows(b if into_b else a, sample, of_b, view)]
    if into_b and explicit is not None:
        rows.append(_PoolRows(explicit.rows, explicit.pool_ids(sample, of_same_side=of_b), of_b, view))
    return rows


def _widen(rows: Tensor, of_b: bool) -> Tensor:
    """Return rows (r, 2d) whose products with [a_i, b_i] equal the products of `rows` (r, d) with b_i, or with a_i."""
    width = rows.shape[1]
    return pad(rows, (width, 0) if of_b else (0, width))


def _joined(parts: list[Tensor]) -> Tensor:
    """Return the concatenation; a single part is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _as_wide(sample: Tensor, explicit: _Explicit | None) -> Tensor:
    """Return sample ids in 64 bits if they will be compared with the ids of explicit negatives."""
    return sample.long() if explicit is not None and explicit.ids is not None else sample


def _check_negatives(negatives: Tensor | None, negative_ids: Tensor | None, a: Tensor) -> _Explicit | None:
    """Return explicit negatives as rows, or raise ValueError."""
    if negatives is None:
        if negative_ids is not None:
            raise ValueError(
                "negative_ids: expected None, since there are no explicit negatives; pass negatives=… as well"
            )
        return None
    check_embeddings("negatives", negatives, 2, 3, shapes={2: "(r, d)", 3: "(m, k, d)"})
    check_width("negatives", negatives, a)
    if negatives.ndim == 3 and len(negatives) != len(a):
        raise ValueError(
            f"negatives: expected (m, k, d) for m = {len(a)} samples, or (r, d), got {tuple(negatives.shape)}"
        )
    if negative_ids is not None:
        _check_negative_ids(negative_ids, negatives.shape[:-1])
        negative_ids = negative_ids.to(a.device).long().flatten()
    return _Explicit(negatives.flatten(0, -2), negative_ids, negatives.shape[1] if negatives.ndim == 3 else None)


def _check_negative_ids(negative_ids: Tensor, shape: tuple[int, ...]) -> None:
    if not isinstance(negative_ids, Tensor) or tuple(negative_ids.shape) != tuple(shape):
        received = received_integers("negative_ids", negative_ids)
        raise ValueError(
            f"negative_ids: expected one integer per row of negatives, shape {tuple(shape)}, got {received}"
        )
    if negative_ids.is_floating_point() or negative_ids.dtype in (torch.bool, torch.complex64, torch.complex128):
        raise ValueError(f"negative_ids: expected integers, got {negative_ids.dtype}")


def _check_unnormalised(similarity: str, directions: set[str], symmetric_with_negatives: bool) -> None:
    check_choice("similarity", similarity, *SIMILARITIES)
    if len(directions) > 1 or symmetric_with_negatives:
        raise ValueError(
            f"similarity: expected 'cosine' with several directions or with explicit negatives in both, got {similarity!r}"
        )


def _check_directions(directions: Sequence[str], symmetric: bool) -> set[str]:
    """Return the directions in the single sum, or raise ValueError."""
    directions = (directions,) if isinstance(directions, str) else tuple(directions)
    for direction in directions:
        check_choice("directions", direction, *DIRECTIONS)
    if "a_to_b" not in directions:
        raise ValueError(f"directions: expected 'a_to_b', which has the positives, to be included, got {directions!r}")
    if symmetric and set(directions) != set(_A_TO_B):
        raise ValueError(
            f"directions: expected ('a_to_b',) with symmetric=True, which adds 'b_to_a' with a softmax of its own, "
            f"got {directions!r}"
        )
    return set(directions)
