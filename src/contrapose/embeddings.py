"""`Embeddings`: the networks' outputs for a batch, from which every objective gets its input.

    z           (V, m, d) projector outputs
    target      (W, m, d) from a momentum encoder or another tower
    pairs       which rows are compared with each other, for contrastive objectives
    assignments similarities to prototypes, for clustering objectives

The framework that computes the embeddings also decides how they are compared: within the batch, with a queue, with a memory
bank or between towers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from contrapose.pairs import Pairs, around_ring, bank, cross, neighbours, queue, unit, views
from contrapose.reduce.unit import matmul
from contrapose.validate import check_embeddings, check_same_shape

# Arguments of an objective that `Embeddings.provide` can supply.
PROVIDED = ("score", "labels", "stored_labels", "support")


class State(nn.Module):
    """State that a method keeps between steps: a queue, a bank, a momentum encoder, a temperature for each sample.

    All of it is in `state_dict`, so that a run resumes exactly.
    """

    replaces: tuple[str, ...] = ()  # settings of the objective for which `settings` returns values of its own
    is_scheduled = False  # whether `settings` returns schedules, which a captured CUDA graph could not follow

    def settings(self, batch: Any) -> dict[str, Any]:
        """Return the arguments that the objective gets for this batch."""
        return {}

    def update(self, batch: Any, **settings: Any) -> None:
        """Update the state with a batch, after its loss and gradient are computed."""

    def after_step(self) -> None:
        """Update the state after an optimiser step."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Assignments:
    """Similarities of embeddings to prototypes, before any softmax. Only `scores` have a gradient.

    >>> Assignments(scores=torch.randn(2, 4, 8)).scores.shape  # two views of 4 samples, 8 prototypes
    torch.Size([2, 4, 8])
    """

    scores: Tensor  # (V, m, p)
    target: Tensor | None = None  # (W, m, p) a teacher's scores for the first W views (DINO)
    stored: Tensor | None = None  # (W, r, p) scores of earlier samples in a queue (SwAV)
    stored_weight: Tensor | None = None  # () 1 if stored rows count, else 0: a tensor, since a captured step reads it
    center: Tensor | None = None  # (p,) running mean of the teacher's scores, kept by the framework (DINO)
    global_views: int = 0  # number of views of full size, which are the first ones; 0: all


@dataclass(frozen=True, eq=False, kw_only=True)
class Embeddings:
    """Embeddings of a batch in V views, with everything an objective may need to compare them.

    >>> embeddings = Embeddings(z=torch.randn(2, 4, 8), compare=within_batch)
    >>> embeddings.pairs.shape  # 8 anchors, 8 candidates
    (8, 8)
    """

    z: Tensor  # (V, m, d), not normalised, with gradient
    compare: Callable[[Embeddings], Pairs]  # how `pairs` are made: within_batch, with_queue(...), with_bank(...)
    target: Tensor | None = None  # (W, m, d) from a momentum encoder or another tower; W may differ from V
    ids: Tensor | None = None  # (m,) data-set indices
    support: Tensor | None = None  # (S, m, d) views by which false negatives are recognised, without gradient (FNC)
    score: Tensor | None = None  # (V, m) extra output of the projector: TaU's certainty
    prototypes: Tensor | None = None  # (p, d)
    target_prototypes: Tensor | None = None  # (p, d) a teacher's prototypes; default: `prototypes`
    stored: Tensor | None = None  # (W, r, d) embeddings of earlier samples, to be compared with the prototypes
    stored_weight: Tensor | None = None  # () 1 if stored rows count, else 0
    center: Tensor | None = None  # (p,) running mean of the teacher's similarities to its prototypes
    global_views: int = 0  # number of views of full size, which are the first ones; 0: all
    sample_labels: Tensor | None = None  # (N,) labels of all samples in the data set, for supervised objectives
    in_ring: bool = False  # whether these are this process's own, so that candidates travel between processes

    @cached_property
    def pairs(self) -> Pairs:
        """Anchors, positives and negatives; with several processes, each reduces its share of the anchors."""
        # Cached, so that loss, state and penalties share one normalisation and its graph.
        pairs = self.compare(self)
        # Objectives read a ring as they read pairs, and what it cannot tell them it names in an error.
        return cast(Pairs, around_ring(pairs)) if self.in_ring else pairs.sharded()

    @cached_property
    def assignments(self) -> Assignments:
        """Similarities to the prototypes."""
        if self.prototypes is None:
            raise ValueError(
                "prototypes: this loss assigns samples to prototypes, but these embeddings have none; "
                "pass Embeddings(…, prototypes=…) or Assignments(scores=…)"
            )
        rows = unit(self.prototypes).T
        with torch.no_grad():  # prototypes learn from the student's scores only
            teacher = rows if self.target_prototypes is None else unit(self.target_prototypes).T
            target = None if self.target is None else matmul(unit(self.target), teacher)
            stored = None if self.stored is None else matmul(unit(self.stored), rows)
        return Assignments(
            scores=matmul(unit(self.z), rows),
            target=target,
            stored=stored,
            stored_weight=self.stored_weight,
            center=self.center,
            global_views=self.global_views,
        )

    def provide(self, name: str) -> Tensor | None:
        """Return one of `PROVIDED`: a score per anchor (V · m,), labels of the batch (m,) or of stored rows, support views."""
        if name == "support":  # None: the anchors themselves are used
            return self.support
        if name in ("labels", "stored_labels"):
            return self._labels(stored=name == "stored_labels")
        if name != "score" or self.score is None:
            raise ValueError(f"{name}: this loss needs this output, but this framework's network does not have it")
        return self.score.flatten()

    def _labels(self, *, stored: bool) -> Tensor | None:
        """Return labels looked up by sample id; -1 for queue rows, whose samples are unknown."""
        if self.sample_labels is None or self.ids is None:
            raise ValueError(
                "labels: this loss needs the samples' labels, but these embeddings have none; pass Embeddings(…, labels=…)"
            )
        if not stored:
            return self.sample_labels[self.ids]
        if not self.pairs.stored:
            return None
        ids = self.pairs.pool_id[: self.pairs.stored]
        return torch.where(ids >= 0, self.sample_labels[ids.clamp(min=0)], -1)


def of_two_views(z1: Tensor, z2: Tensor) -> Embeddings:
    """Return the embeddings (m, d) of two views as `Embeddings`."""
    check_embeddings("z1", z1, 2)
    check_embeddings("z2", z2, 2)
    check_same_shape("z2", z2, "z1", z1)
    return Embeddings(z=torch.stack([z1, z2]), compare=within_batch)


def within_batch(embeddings: Embeddings, *, similarity: str = "cosine") -> Pairs:
    """Compare all views of the batch with each other, or with the target's views if there is a target (SimCLR, MoCo v3)."""
    return views(embeddings.z, keys=embeddings.target, similarity=similarity, ids=embeddings.ids)


def first_to_second(embeddings: Embeddings) -> Pairs:
    """Compare each sample's first view with all samples' second views; further views are negatives for every sample."""
    first, second, *others = embeddings.z
    hard = torch.stack(others, 1) if others else None
    return cross(first, second, negatives=hard, ids=embeddings.ids)


def with_queue(rows: Tensor, *, batch: bool = False, keys: bool = False) -> Callable[[Embeddings], Pairs]:
    """Compare queries with the target's keys and with stored rows (r, d) (MoCo).

    With `batch`, queries are also compared with other queries. With `keys`, the keys of other samples are negatives (FNC).
    """
    # A partial, since an inner function could not be pickled with `Embeddings`.
    return partial(_compare_with_queue, rows=rows, batch=batch, keys=keys)


def _compare_with_queue(embeddings: Embeddings, *, rows: Tensor, batch: bool, keys: bool) -> Pairs:
    assert embeddings.target is not None
    # With a single view of queries, all keys of a sample are its positives.
    query = embeddings.z if len(embeddings.z) > 1 else embeddings.z[0]
    return queue(query, embeddings.target, rows, batch=batch, keys=keys, ids=embeddings.ids)


def with_nearest_neighbours(rows: Tensor) -> Callable[[Embeddings], Pairs]:
    """Compare the target's nearest neighbours among the stored rows (r, d) with the other views' predictions (NNCLR)."""
    return partial(_compare_with_neighbours, rows=rows)


def _compare_with_neighbours(embeddings: Embeddings, *, rows: Tensor) -> Pairs:
    assert embeddings.target is not None
    return neighbours(embeddings.z, embeddings.target, rows, ids=embeddings.ids)


def with_bank(rows: Tensor) -> Callable[[Embeddings], Pairs]:
    """Compare each view with stored rows (N, d), one per sample in the data set (Wu et al.)."""
    return partial(_compare_with_bank, rows=rows)


def _compare_with_bank(embeddings: Embeddings, *, rows: Tensor) -> Pairs:
    assert embeddings.ids is not None
    return bank(embeddings.z, embeddings.ids, rows)


def between_towers(embeddings: Embeddings) -> Pairs:
    """Compare the first views (images) with the second views (captions) of all samples, and vice versa (CLIP)."""
    first, second = embeddings.z
    return cross(first, second, symmetric=True, ids=embeddings.ids)
