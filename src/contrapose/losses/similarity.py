"""Objectives that are linear in the similarities: no softmax, no temperature."""

from __future__ import annotations

import torch
from torch import Tensor

from contrapose.losses.finish import finish
from contrapose.losses.objective import objective
from contrapose.pairs import AnyPairs
from contrapose.pairs.negatives import Negatives, may_leave_none
from contrapose.reduce import Count, Maximum, Mean
from contrapose.validate import check_number

__all__ = ["simple", "triplet"]


@objective
def simple(
    pairs: AnyPairs,
    *,
    weight: float | None = None,
    negatives: Negatives = None,
    reduction: str = "mean",
) -> Tensor:
    """-s⁺ + λ Σ_k s_k with λ = 1/(number of negatives), or λ = `weight` (Wang & Liu, Eq. 3).

    This is the limit of NT-Xent at high temperature: all negatives have the same weight. With `hardest(k)` it is HardSimple.
    With several positives, s⁺ is their mean.

    pairs       the result of `two_views`, `views`, `cross`, `queue`, `bank` or `from_similarities`
    weight      λ; default: 1/(number of negatives)
    negatives   which candidates are negatives: `other_views()`, `hardest(k)`, … or a tuple of them; default: all
    reduction   "mean" or "sum" over anchors, or "none" for one value per anchor (n,)
    """
    attraction = pairs.positives().mean(1)
    if weight is None:
        (repulsion,) = pairs.reduce(Mean(), negatives=negatives)
    else:
        check_number("weight", weight, least=0.0)
        mean, count = pairs.reduce(Mean(), Count(), negatives=negatives)
        repulsion = weight * mean * count
    return finish(repulsion - attraction, reduction)


@objective
def triplet(pairs: AnyPairs, *, margin: float = 0.0, negatives: Negatives = None, reduction: str = "mean") -> Tensor:
    """max(max_k s_k - s⁺ + margin, 0): only the hardest negative is pushed away (Wang & Liu, Eq. 6).

    This is the limit of τ · NT-Xent at low temperature. With several positives, it is the mean over the positives.

    pairs       the result of `two_views`, `views`, `cross`, `queue`, `bank` or `from_similarities`
    margin      how much more similar than the hardest negative the positive must be
    negatives   which candidates are negatives: `other_views()`, `hardest(k)`, … or a tuple of them; default: all
    reduction   "mean" or "sum" over anchors, or "none" for one value per anchor (n,)
    """
    check_number("margin", margin)
    # Without negatives the maximum is -inf and the loss is 0.
    (hardest,) = pairs.reduce(Maximum(), negatives=negatives, may_be_empty=may_leave_none(negatives))
    return finish(torch.relu(hardest[:, None] - pairs.positives() + margin).mean(1), reduction)
