"""Contrastive attraction and contrastive repulsion (CACR, Zheng et al.).

The cost is c = ‖x - y‖² = 2 - 2s. Among the K positives of a query, distant ones attract more; among its negatives,
close ones repel more:

    CA = Σ_k π⁺_k c(z, z⁺_k),    π⁺ = softmax(+t⁺ c)
    CR = -Σ_j π⁻_j c(z, z_j),    π⁻ = softmax(-t⁻ c)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from contrapose.losses.finish import finish
from contrapose.losses.objective import Settings, Softness, objective
from contrapose.pairs import AnyPairs
from contrapose.pairs.negatives import (
    Negatives,
    batch_rows,
    may_leave_none,
    other_views,
    same_view,
    steps,
    stored_rows,
)
from contrapose.reduce import Expectation, LogSumExp, Scale, softplus
from contrapose.validate import check_choice, check_number

__all__ = ["cacr", "cacr_moco_v3"]

WEIGHTS = ("contrast", "uniform", "reversed")
COSTS = ("euclidean", "inner", "rbf")


def _no_weights(t_neg: float, settings: Settings, positive: float) -> float | None:
    """Return None, since repulsion with equal weights has no temperature."""
    return None if settings.get("repulsion") == "uniform" else t_neg


@objective(unit_vectors=True, softness=Softness("t_neg", power=-1, factor=2.0, nominal=_no_weights))
def cacr(
    pairs: AnyPairs,
    *,
    t_pos: float = 1.0,
    t_neg: float = 2.0,
    attraction: str = "contrast",
    repulsion: str = "contrast",
    cost: str = "euclidean",
    t: float = 2.0,
    margin: float | None = None,
    attract_weight: float = 1.0,
    repel_weight: float = 1.0,
    stop_positive_weights: bool | None = None,
    detach_queue_weights: bool = False,
    negatives: Negatives = None,
    reduction: str = "mean",
) -> Tensor:
    """CA + CR with t⁺ = `t_pos` and t⁻ = `t_neg`: contrastive attraction and repulsion (Zheng et al., Eq. 2-4).

    pairs                   the result of `two_views`, `views`, `cross`, `queue`, `bank` or `from_similarities`
    t_pos, t_neg            t⁺ and t⁻
    attraction, repulsion   "contrast" as above, "uniform" (equal weights), "reversed" (the sign of t flipped)
    cost                    "euclidean" 2 - 2s; "inner" -s; "rbf": CR = log mean_i Σ_j π⁻_ij e^{-t c_ij}. Weights always
                            use 2 - 2s.
    margin                  if set, the loss is max(CA + CR + margin, 0) for each query, as in a triplet loss, and a query's
                            negatives come from all other views
    stop_positive_weights   no gradient through π⁺; the default with keys, a queue or a bank (the MoCo form)
    detach_queue_weights    no gradient through the stored rows' part of π⁻, as in the authors' MoCo code
    t                       t of the cost "rbf"
    attract_weight          factor of CA
    repel_weight            factor of CR
    negatives               which candidates are negatives: `other_views()`, `hardest(k)`, … or a tuple of them; default: all
    reduction               "mean" or "sum" over anchors, or "none" for one value per anchor (n,)

    The K positives come from the pairs; with a single positive, π⁺ = 1 and CA is the alignment loss. On `two_views` and
    `views` the default follows the authors' code: each pair of views v < w is compared separately with v as the query (with
    `keys`, in both directions), and CR is one number per sample, used for all of its views. If `negatives` is given, there
    is one softmax over the chosen negatives; `negatives=same_view()` is the paper's formula. On `queue` with `batch`, the
    negatives are the stored rows and the other queries in the query's view.
    """
    check_number("t_pos", t_pos, least=0.0)
    check_number("t_neg", t_neg, least=0.0)
    check_number("t", t, above=0.0)
    check_number("attract_weight", attract_weight, least=0.0)
    check_number("repel_weight", repel_weight, least=0.0)
    if detach_queue_weights and cost == "rbf":
        raise ValueError("detach_queue_weights: expected cost='euclidean' or cost='inner', got cost='rbf'")
    check_choice("attraction", attraction, *WEIGHTS)
    check_choice("repulsion", repulsion, *WEIGHTS)
    check_choice("cost", cost, *COSTS)
    if stop_positive_weights is None:
        stop_positive_weights = pairs.detached
    if margin is not None and pairs.has_views:  # the margin applies to a query's own CR, not to its sample's CR
        negatives = steps(negatives) or (other_views(),)
    attract = _attraction(pairs.positives(), _sharpness(t_pos, attraction), cost, stop_positive_weights)
    sharpness = -_sharpness(t_neg, repulsion)
    if cost == "rbf":
        repel = _rbf_repulsion(pairs, sharpness, t, negatives)
    else:
        similarity = _mean_negative(pairs, sharpness, negatives, detach_queue_weights)
        repel = similarity if cost == "inner" else 2 * similarity - 2
    values = attract_weight * attract + repel_weight * repel
    if margin is not None:
        check_number("margin", margin)
        values = torch.relu(values + margin)
    return finish(values, reduction)


def _sharpness(t: float, weights: str) -> float:
    """Return κ such that the weights softmax(t c) with c = 2 - 2s are softmax(κ s)."""
    return {"contrast": -2 * t, "uniform": 0.0, "reversed": 2 * t}[weights]


def _attraction(positives: Tensor, sharpness: float, cost: str, stop: bool) -> Tensor:
    weight = torch.softmax(sharpness * (positives.detach() if stop else positives), dim=1)
    similarity = (weight * positives).sum(1)
    return -similarity if cost == "inner" else 2 - 2 * similarity


def _view_pairs(pairs: AnyPairs) -> list[AnyPairs]:
    """Return the pairs for each two views, with the earlier view as the query.

    With keys, which carry no gradient, return both directions; otherwise the last view would get no gradient.
    """
    return [between for v, w, between in pairs.between_views() if v < w or pairs.detached]


def _mean_negative(pairs: AnyPairs, sharpness: float, negatives: Negatives, detach_queue: bool) -> Tensor:
    """Return Σ_j π⁻_j s_j, (n,)."""
    if not steps(negatives) and pairs.has_views:
        parts = [_mean_negative(between, sharpness, None, detach_queue) for between in _view_pairs(pairs)]
        return torch.stack(parts).mean(0).repeat(pairs.view_count)
    expectation = Expectation(Scale(sharpness), detach=detach_queue and pairs.stored > 0)
    mixed = 0 < pairs.stored < pairs.shape[1]
    chosen = steps(negatives) or ((same_view(),) if mixed else ())
    if not (mixed and detach_queue):
        return pairs.reduce(expectation, negatives=chosen)[0]
    # One softmax over stored rows, with fixed weights, and one over the batch, combined in proportion to their totals.
    total = LogSumExp(Scale(sharpness))
    log_stored, stored = pairs.reduce(total, expectation, negatives=(*chosen, stored_rows()), may_be_empty=True)
    differentiable = Expectation(Scale(sharpness))
    log_batch, batch = pairs.reduce(total, differentiable, negatives=(*chosen, batch_rows()), may_be_empty=True)
    # e^a / (e^a + e^b), which is also correct if one part is empty and its total is -inf.
    stored_share = torch.sigmoid(log_stored.detach() - log_batch)
    return stored_share * stored + (1 - stored_share) * batch


def _rbf_repulsion(pairs: AnyPairs, sharpness: float, t: float, negatives: Negatives) -> Tensor:
    """Return log mean_i Σ_j π⁻_ij e^{-t c_ij}, one number for the batch: the mean over (pairs of) views."""
    if not steps(negatives) and pairs.has_views:
        parts = [_rbf_repulsion(between, sharpness, t, None) for between in _view_pairs(pairs)]
        return torch.stack(parts).mean()
    chosen = steps(negatives) or ((same_view(),) if 0 < pairs.stored < pairs.shape[1] else ())
    weighted, total = pairs.reduce(LogSumExp(Scale(sharpness + 2 * t)), LogSumExp(Scale(sharpness)), negatives=chosen)
    # Both sums are log-sum-exps of s: π⁻ e^{-t c} = e^{(κ + 2t) s - 2t} / Σ e^{κ s}.
    log_values = (weighted - total - 2 * t).reshape(pairs.view_count, -1)
    return log_values.logsumexp(1).mean() - math.log(log_values.shape[1])


@objective(unit_vectors=True, tensor_settings=())
def cacr_moco_v3(
    pairs: AnyPairs,
    *,
    temperature: float = 1.0,
    cost: str = "rbf",
    negatives: Negatives = None,
    reduction: str = "mean",
) -> Tensor:
    """mean_k Σ_q p_q · 2τ CE(q, k) with p = sg[softmax_q(‖q - k‖²/τ)]: queries far from their key weigh more (CACR).

    This is the objective in the authors' MoCo v3 code; the objective in their paper is `cacr`. The queries q of a key k come
    from all other views of its image; `views(z, keys=…)` provides the keys (with multi-crop, only those of the global crops).
    CE is NT-Xent against the keys of k's view. With two views there is one query per key, so p = 1 and the loss is half of
    `moco_v3`, which adds up its two directions, whereas the authors average them.

    cost="euclidean" replaces 2τ CE by Σ_j sg[π_j] s_j - s⁺, with π = softmax(s/τ) over the negatives. The authors sum this
    cost over the images on one GPU, so their loss depends on the number of GPUs. Here it is the mean, as with the other cost:
    multiply by the number of images per GPU for the authors' scale.

    On pairs without views of the batch (`cross`, `queue`, `bank`, similarity values) every query has weight 1.

    pairs         the result of `two_views`, `views`, `cross`, `queue`, `bank` or `from_similarities`
    temperature   τ, a number
    cost          "rbf" or "euclidean"
    negatives     which candidates are negatives: `other_views()`, `hardest(k)`, … or a tuple of them; default: all
    reduction     "mean" or "sum" over anchors, or "none" for one value per anchor (n,)
    """
    check_number("temperature", temperature, above=0.0)
    check_choice("cost", cost, "rbf", "euclidean")
    if not pairs.has_views:
        return finish(_query_losses(pairs, temperature, cost, negatives), reduction)
    similarity: dict[tuple[int, int], Tensor] = {}
    losses: dict[tuple[int, int], Tensor] = {}
    for query, key, between in pairs.between_views():
        similarity[query, key] = between.positives()[:, 0].detach()
        losses[query, key] = _query_losses(between, temperature, cost, negatives)[:, 0]
    values: list[list[Tensor]] = [[] for _ in range(pairs.view_count)]
    for key in range(pairs.key_views):
        queries = [view for view in range(pairs.view_count) if view != key]
        # ‖q - k‖² is 2 - 2s, and a softmax does not see the constant.
        weights = torch.stack([-2 / temperature * similarity[query, key] for query in queries]).softmax(0)
        for query, weight in zip(queries, weights, strict=True):
            values[query].append(weight * losses[query, key])
    # `finish` averages over all anchors, with one term for each view; the authors average with one term for each key.
    scale = pairs.view_count / pairs.key_views
    return finish(scale * torch.cat([torch.stack(terms).sum(0) for terms in values]), reduction)


def _query_losses(pairs: AnyPairs, temperature: float, cost: str, negatives: Negatives) -> Tensor:
    """Return the loss of each anchor and positive, (n, k), before weights."""
    logit, positives = Scale(1 / temperature), pairs.positives()
    empty = may_leave_none(negatives)
    if cost == "euclidean":
        (repelled,) = pairs.reduce(Expectation(logit, detach=True), negatives=negatives, may_be_empty=empty)
        return repelled[:, None] - positives
    (total,) = pairs.reduce(LogSumExp(logit), negatives=negatives, may_be_empty=empty)
    return 2 * temperature * softplus(total[:, None] - logit(positives))
