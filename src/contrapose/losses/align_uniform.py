"""Alignment and uniformity as an objective (Wang & Isola)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from contrapose.losses.objective import Softness, objective
from contrapose.losses.reduction import finish
from contrapose.pairs import AnyPairs
from contrapose.pairs.negatives import Negatives, batch_rows, same_view, steps, stored_rows
from contrapose.reduce import Count, LogSumExp, Scale
from contrapose.validate import check_number


@objective(softness=Softness("t", power=-1, factor=2.0))
def align_uniform(
    pairs: AnyPairs,
    *,
    alpha: float = 2.0,
    t: float = 2.0,
    align_weight: float = 1.0,
    uniform_weight: float = 1.0,
    negatives: Negatives = None,
    reduction: str = "mean",
) -> Tensor:
    """w_a · mean ‖z - z⁺‖^α + w_u · log mean e^{-t‖z - z'‖²} (AU-CL).

    Uniformity is over the pairs of different images within each view, then the mean over views. On `queue` and
    `bank` it is over all (query, stored row) pairs and, with `batch`, the pairs of queries, each once. On `cross`
    and on bare similarities it is over the negatives there are. Several positives: the mean of their distances.
    It belongs to the whole batch, so `reduction="none"` adds the same number to every anchor's alignment.
    """
    for name, value in (("alpha", alpha), ("t", t)):
        check_number(name, value, above=0.0)
    for name, value in (("align_weight", align_weight), ("uniform_weight", uniform_weight)):
        check_number(name, value)
    distance = 2 - 2 * pairs.positives()  # ‖z - z⁺‖²
    if alpha != 2:
        # A square root has no slope at 0: coincident views are as aligned as they can be and get none.
        apart = distance > 0  # by rounding it may be below
        distance = torch.where(apart, torch.where(apart, distance, 1.0) ** (alpha / 2), 0.0)
    return finish(align_weight * distance.mean(1) + uniform_weight * _uniformity(pairs, t, negatives), reduction)


def _uniformity(pairs: AnyPairs, t: float, negatives: Negatives) -> Tensor:
    if 0 < pairs.stored < pairs.shape[1]:
        return _queue_uniformity(pairs, t, negatives)
    chosen = (same_view(), *steps(negatives)) if pairs.has_views else steps(negatives)
    total, count = pairs.reduce(LogSumExp(Scale(2 * t)), Count(), negatives=chosen)
    groups = (pairs.views if pairs.has_views else 1, -1)
    return (total.reshape(groups).logsumexp(1) - count.reshape(groups).sum(1).log()).mean() - 2 * t


def _queue_uniformity(pairs: AnyPairs, t: float, negatives: Negatives) -> Tensor:
    """Query-queue pairs, and query-query pairs of one view, which stand in the matrix twice and count once."""
    total, before = LogSumExp(Scale(2 * t)), (same_view(), *steps(negatives))
    stored, m = pairs.reduce(total, Count(), negatives=(*before, stored_rows()), may_be_empty=True)
    batch, b = pairs.reduce(total, Count(), negatives=(*before, batch_rows()), may_be_empty=True)
    everything = torch.stack([stored, batch - math.log(2)]).flatten().logsumexp(0)
    return everything - (m.sum() + b.sum() / 2).log() - 2 * t
