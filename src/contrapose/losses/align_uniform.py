"""Alignment and uniformity as an objective (Wang & Isola)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from contrapose.losses.finish import finish
from contrapose.losses.objective import Softness, objective
from contrapose.pairs import AnyPairs
from contrapose.pairs.negatives import Negatives, batch_rows, may_leave_none, same_view, steps, stored_rows
from contrapose.reduce import Count, LogSumExp, Scale
from contrapose.validate import check_number

__all__ = ["align_uniform"]


@objective(unit_vectors=True, softness=Softness("t", power=-1, factor=2.0))
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
    """w_a · mean ‖z - z⁺‖^α + w_u · log mean e^{-t‖z - z'‖²} (Wang & Isola; AU-CL).

    Uniformity is computed over the pairs of different samples within each view and averaged over views. On `queue` and
    `bank` it is computed over all (query, stored row) pairs and, with `batch`, over the pairs of queries, each once; on
    `cross` and on similarity values, over all negatives. If only global crops have keys, the keys are compared with all
    views, since a local crop has no key of its own view. With several positives, alignment is their mean distance.
    Uniformity is one number for the whole batch, so `reduction="none"` adds the same number to every anchor's alignment.
    Distances between views that nearly coincide are exact, except on similarity values: there they are computed as
    2 - 2s, which loses digits in float32.

    pairs            the result of `two_views`, `views`, `cross`, `queue`, `bank` or `from_similarities`
    alpha            α, the power of the distance of positives
    t                t: the larger it is, the more the close pairs dominate
    align_weight     w_a, the factor of alignment
    uniform_weight   w_u, the factor of uniformity
    negatives        which candidates are negatives: `other_views()`, `hardest(k)`, … or a tuple of them; default: all
    reduction        "mean" or "sum" over anchors, or "none" for one value per anchor (n,)
    """
    for name, value in (("alpha", alpha), ("t", t)):
        check_number(name, value, above=0.0)
    for name, value in (("align_weight", align_weight), ("uniform_weight", uniform_weight)):
        check_number(name, value, least=0.0)
    distance = pairs.positive_distances()
    if alpha != 2:
        # For α < 2 the derivative is infinite at 0, where the minimum is: coincident views get no gradient. The inner
        # `where` keeps that infinity, times 0, from becoming NaN in the backward pass. Rounding may even make the
        # distance of similarity values negative.
        apart = distance > 0
        distance = torch.where(apart, torch.where(apart, distance, 1.0) ** (alpha / 2), 0.0)
    return finish(align_weight * distance.mean(1) + uniform_weight * _uniformity(pairs, t, negatives), reduction)


def _uniformity(pairs: AnyPairs, t: float, negatives: Negatives) -> Tensor:
    """Return log mean e^{-t‖z - z'‖²}, averaged over views."""
    if pairs.has_keys:
        raise ValueError(
            "pairs: align_uniform spreads out queries, but these pairs have keys as negatives; expected a queue without keys"
        )
    if 0 < pairs.stored < pairs.shape[1]:
        return _queue_uniformity(pairs, t, negatives)
    within = pairs.has_views and not pairs.global_views
    chosen = (same_view(), *steps(negatives)) if within else steps(negatives)
    empty = may_leave_none(negatives)
    total, count = pairs.reduce(LogSumExp(Scale(2 * t)), Count(), negatives=chosen, may_be_empty=empty)
    groups = (pairs.view_count if pairs.has_views else 1, -1)
    return _log_mean(total.reshape(groups), count.reshape(groups), t).mean()


def _queue_uniformity(pairs: AnyPairs, t: float, negatives: Negatives) -> Tensor:
    """Return uniformity over query-queue pairs and, within a view, query-query pairs."""
    total, chosen = LogSumExp(Scale(2 * t)), (same_view(), *steps(negatives))
    stored, stored_count = pairs.reduce(total, Count(), negatives=(*chosen, stored_rows()), may_be_empty=True)
    batch, batch_count = pairs.reduce(total, Count(), negatives=(*chosen, batch_rows()), may_be_empty=True)
    # A pair of queries is in the matrix twice, as (i, j) and as (j, i), and is halved to enter the mean once.
    return _log_mean(torch.cat([stored, batch - math.log(2)]), torch.cat([stored_count, batch_count / 2]), t)


def _log_mean(total: Tensor, count: Tensor, t: float) -> Tensor:
    """Return log mean e^{-t‖z - z'‖²} over the last dimension, from log Σ e^{2ts} and the number of pairs; 0 for no pair."""
    # A finite number replaces -inf, the total of an anchor without negatives: if no anchor has any, the gradient would be NaN.
    log_sum = total.clamp(min=torch.finfo(total.dtype).min / 4).logsumexp(-1)
    count = count.sum(-1)
    # -t‖z - z'‖² = 2t·s - 2t.
    return torch.where(count > 0, log_sum - torch.where(count > 0, count, 1.0).log() - 2 * t, 0.0)
