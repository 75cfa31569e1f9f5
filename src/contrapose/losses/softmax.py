"""Objectives that weight negatives by a softmax of their similarity.

With several positives, an objective is the mean of its values for each single positive: each positive is contrasted with
the same negatives, and the other positives are left out.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from contrapose.losses.finish import cross_entropy, finish
from contrapose.losses.objective import Settings, Softness, doubled, objective
from contrapose.pairs import AnyPairs, Pairs, Similarities, cross
from contrapose.pairs.negatives import Negatives, may_leave_none, same_view, steps
from contrapose.pairs.negatives import other_views as only_other_views
from contrapose.reduce import Count, HardnessLogit, Logit, LogSumExp, Scale, softplus
from contrapose.temperature import Temperature, adaptive, temperature_logit, uncertainty
from contrapose.validate import check_number

__all__ = [
    "balanced",
    "clip",
    "cmc",
    "dcl",
    "dclw",
    "generalized_nt_xent",
    "hard_negative",
    "macl",
    "moco_v3",
    "nt_xent",
    "tau",
]


@objective
def nt_xent(
    pairs: AnyPairs,
    *,
    temperature: Temperature = 0.5,
    hardness: float = 0.0,
    negatives: Negatives = None,
    reduction: str = "mean",
) -> Tensor:
    """-log e^{s⁺/τ} / (e^{s⁺/τ} + Σ_k e^{s_k/τ}): InfoNCE, NT-Xent.

    On `two_views` this is SimCLR's loss, on `queue` MoCo's, on `bank` Wang & Liu's Eq. 1 and, with `hardest(k)`, their
    Eq. 9. With `temperature=cosine(low, high)` it is DySTreSS (Manna et al., Alg. 3). `hardness` α multiplies each
    negative's term by sg[e^{αs_k}], which gives similar negatives more weight (LLaVE, Lan et al., α = 9).

    pairs         the result of `two_views`, `views`, `cross`, `queue`, `bank` or `from_similarities`
    temperature   τ: a number, one per anchor (n,), a function of similarity (`cosine(0.07, 0.2)`) or `learned(…)`
    hardness      α; 0: no extra weight
    negatives     which candidates are negatives: `other_views()`, `hardest(k)`, … or a tuple of them; default: all
    reduction     "mean" or "sum" over anchors, or "none" for one value per anchor (n,)

    >>> from contrapose.pairs import two_views
    >>> round(nt_xent(two_views(torch.eye(4), torch.eye(4)), temperature=0.5).item(), 4)  # log(1 + 6/e²)
    0.5944
    """
    logit = temperature_logit(temperature, pairs.shape[0])
    if reduction == "mean" and not hardness and isinstance(pairs, Pairs):
        loss = pairs.mean_cross_entropy(logit, negatives=negatives)
        if loss is not None:
            return loss
    # Without negatives the total is -inf and the loss is 0.
    total_of = LogSumExp(_hardened(logit, hardness))
    (total,) = pairs.reduce(total_of, negatives=negatives, may_be_empty=may_leave_none(negatives))
    return cross_entropy(pairs, total, logit, reduction)


@objective(make_pairs=partial(cross, symmetric=True))
def clip(
    pairs: AnyPairs, *, temperature: Temperature = 0.07, negatives: Negatives = None, reduction: str = "mean"
) -> Tensor:
    """NT-Xent against rows of other views only: ½[CE(S/τ) + CE(Sᵀ/τ)] (CLIP, Radford et al.).

    This is the symmetric loss on `cross(image, text, symmetric=True)` and on `two_views(image, text)`, or called as
    `clip(image, text)`; on `cross(image, text)` it is only the image-to-text direction, CE(S/τ). CLIP learns its
    temperature: `Loss(clip, temperature=learned(0.07, low=0.01))`.

    pairs         the result of `two_views`, `cross`, …, or two tensors (m, d), one per side
    temperature   τ: a number, one per anchor (n,), a function of similarity (`cosine(0.07, 0.2)`) or `learned(…)`
    negatives     which candidates are negatives: `other_views()`, `hardest(k)`, … or a tuple of them; default: all
    reduction     "mean" or "sum" over anchors, or "none" for one value per anchor (n,)

    >>> round(clip(torch.eye(4), torch.eye(4), temperature=0.5).item(), 4)  # log(1 + 3/e²)
    0.3408
    """
    # Similarity values carry no information about views, so all candidates are negatives.
    unknown = isinstance(pairs, Similarities) and pairs.anchor_view is None
    chosen = steps(negatives) if unknown else (only_other_views(), *steps(negatives))
    return nt_xent(pairs, temperature=temperature, negatives=chosen, reduction=reduction)


def _hardened(logit: Logit, hardness: float) -> Logit:
    """Return the exponent of the negatives; without hardness, return the logit itself, which kernels can compute."""
    check_number("hardness", hardness)
    return HardnessLogit(logit, float(hardness)) if hardness else logit


@objective(tensor_settings=())
def moco_v3(
    pairs: AnyPairs, *, temperature: float = 1.0, negatives: Negatives = None, reduction: str = "mean"
) -> Tensor:
    """2τ times the sum over views of NT-Xent against the other views only: 2τ[CE(q₁, k₂) + CE(q₂, k₁)] (MoCo v3).

    The factor τ cancels the 1/τ in NT-Xent's gradient, so that the learning rate does not depend on the temperature.

    pairs         the result of `two_views`, `views`, `cross`, `queue`, `bank` or `from_similarities`
    temperature   τ, a number
    negatives     which candidates are negatives: `other_views()`, `hardest(k)`, … or a tuple of them; default: all
    reduction     "mean" or "sum" over anchors, or "none" for one value per anchor (n,)
    """
    check_number("temperature", temperature, above=0.0)
    chosen = (only_other_views(), *steps(negatives)) if pairs.has_views else steps(negatives)
    loss = nt_xent(pairs, temperature=temperature, negatives=chosen, reduction=reduction)
    return 2 * temperature * pairs.view_count * loss


@objective
def dcl(
    pairs: AnyPairs,
    *,
    temperature: Temperature = 0.1,
    hardness: float = 0.0,
    split_views: bool = False,
    negatives: Negatives = None,
    reduction: str = "mean",
) -> Tensor:
    """-s⁺/τ + log Σ_k e^{s_k/τ}: decoupled, that is, the positive is not in the sum (Yeh et al., Eq. 6).

    nt_xent = softplus(dcl) for every anchor. With `split_views`, repulsion is the sum of two log-sum-exps, one over the
    negatives in the anchor's own view and one over the negatives in other views. It is then twice as strong, as in lightly
    until 2025 and in the DySTreSS paper's DCL numbers, and `negatives` applies to each of the two groups.

    pairs         the result of `two_views`, `views`, `cross`, `queue`, `bank` or `from_similarities`
    temperature   τ: a number, one per anchor (n,), a function of similarity (`cosine(0.07, 0.2)`) or `learned(…)`
    hardness      α, as in `nt_xent`
    split_views   whether negatives in the anchor's own view and in other views have a log-sum-exp each
    negatives     which candidates are negatives: `other_views()`, `hardest(k)`, … or a tuple of them; default: all
    reduction     "mean" or "sum" over anchors, or "none" for one value per anchor (n,)
    """
    logit = temperature_logit(temperature, pairs.shape[0])
    total = _log_total(pairs, LogSumExp(_hardened(logit, hardness)), negatives, split_views)
    return finish(total - logit(pairs.positives()).mean(1), reduction)


def _untrained_score(settings: Settings, anchors: int) -> dict[str, Any]:
    return {"score": torch.zeros(anchors, dtype=torch.float64)}


@objective(
    provided=("score",),
    untrained=_untrained_score,
    # sigmoid(0) = 1/2 before training
    softness=Softness("base", nominal=doubled),
)
def tau(
    pairs: AnyPairs,
    *,
    score: Tensor,
    base: float = 0.1,
    negatives: Negatives = None,
    reduction: str = "mean",
) -> Tensor:
    """DCL at temperatures τ/sigmoid(t̂_i); t̂ = `score` (n,) is an extra output of the encoder (TaU, Zhang et al.).

    pairs       the result of `two_views`, `views`, `cross`, `queue`, `bank` or `from_similarities`
    score       one number per anchor (n,); `base` is τ, a number
    negatives   which candidates are negatives: `other_views()`, `hardest(k)`, … or a tuple of them; default: all
    reduction   "mean" or "sum" over anchors, or "none" for one value per anchor (n,)
    """
    temperature = uncertainty(score, base=base)
    if len(temperature) != pairs.shape[0]:
        raise ValueError(f"score: expected one number per anchor ({pairs.shape[0]},), got {tuple(score.shape)}")
    return dcl(pairs, temperature=temperature, negatives=negatives, reduction=reduction)


@objective
def dclw(
    pairs: AnyPairs,
    *,
    temperature: Temperature = 0.1,
    sigma: float = 0.5,
    split_views: bool = False,
    negatives: Negatives = None,
    reduction: str = "mean",
) -> Tensor:
    """-w·s⁺/τ + log Σ_k e^{s_k/τ} with w_i = 2 - e^{s_i⁺/σ} / mean_j e^{s_j⁺/σ} (Yeh et al., DCLW).

    Dissimilar positives get a larger weight. Weights carry no gradient and average to 1 over the samples of each view.

    pairs         the result of `two_views`, `views`, `cross`, `queue`, `bank` or `from_similarities`
    temperature   τ: a number, one per anchor (n,), a function of similarity (`cosine(0.07, 0.2)`) or `learned(…)`
    sigma         σ: the lower, the more the weights differ
    split_views   one log-sum-exp for each of the anchor's own view and the other views, as in `dcl`
    negatives     which candidates are negatives: `other_views()`, `hardest(k)`, … or a tuple of them; default: all
    reduction     "mean" or "sum" over anchors, or "none" for one value per anchor (n,)
    """
    check_number("sigma", sigma, above=0.0)
    logit, positives = temperature_logit(temperature, pairs.shape[0]), pairs.positives()
    total = _log_total(pairs, LogSumExp(logit), negatives, split_views)
    by_view = (positives.detach() / sigma).reshape(pairs.view_count, -1, positives.shape[1])  # (V, m, k)
    weight = 2 - (by_view.softmax(1) * by_view.shape[1]).flatten(0, 1)
    return finish(total - (weight * logit(positives)).mean(1), reduction)


def _log_total(pairs: AnyPairs, total: LogSumExp, negatives: Negatives, split_views: bool) -> Tensor:
    """Return the log-sum-exp over negatives, (n,); with `split_views`, one over own plus one over other views."""
    if not split_views:
        return pairs.reduce(total, negatives=negatives)[0]
    if not pairs.has_views:
        raise ValueError("split_views: expected the batch itself in several views, as returned by two_views or views")
    chosen = steps(negatives)
    (same,) = pairs.reduce(total, negatives=(same_view(), *chosen))
    (other,) = pairs.reduce(total, negatives=(only_other_views(), *chosen))
    return same + other


@objective(softness=Softness("alpha", power=-1))
def generalized_nt_xent(
    pairs: AnyPairs,
    *,
    alpha: float = 2.0,
    weight: float = 1.0,
    scale_by_alpha: bool = False,
    negatives: Negatives = None,
    reduction: str = "mean",
) -> Tensor:
    """-s⁺ + (λ/α) log(e^{αs⁺} + Σ_k e^{αs_k}), λ = `weight` (Lee, generalised NT-Xent).

    With λ = 1 it is nt_xent(τ = 1/α) / α; `scale_by_alpha` multiplies by α, back to the scale of NT-Xent.

    pairs            the result of `two_views`, `views`, `cross`, `queue`, `bank` or `from_similarities`
    alpha, weight    α, an inverse temperature, and λ, the factor of repulsion
    scale_by_alpha   whether to multiply the loss by α
    negatives        which candidates are negatives: `other_views()`, `hardest(k)`, … or a tuple of them; default: all
    reduction        "mean" or "sum" over anchors, or "none" for one value per anchor (n,)
    """
    empty = may_leave_none(negatives)
    total, positives = _total_and_positives(pairs, alpha, weight, negatives, may_be_empty=empty)
    with_positive = torch.logaddexp(total[:, None], alpha * positives)
    values = (weight / alpha * with_positive - positives).mean(1)
    return finish(values * alpha if scale_by_alpha else values, reduction)


@objective(softness=Softness("alpha", power=-1))
def balanced(
    pairs: AnyPairs,
    *,
    alpha: float = 4.0,
    weight: float = 2.0,
    scale_by_alpha: bool = False,
    negatives: Negatives = None,
    reduction: str = "mean",
) -> Tensor:
    """-s⁺ + (λ/α) log Σ_k e^{αs_k}, λ = `weight`: the balanced contrastive loss (Lee, Eq. 17).

    α controls how strongly hard negatives outweigh easy ones, λ the balance between attraction and repulsion. With λ = 1
    it is dcl(τ = 1/α) / α; `scale_by_alpha` multiplies by α.

    pairs            the result of `two_views`, `views`, `cross`, `queue`, `bank` or `from_similarities`
    alpha, weight    α, an inverse temperature, and λ, the factor of repulsion
    scale_by_alpha   whether to multiply the loss by α
    negatives        which candidates are negatives: `other_views()`, `hardest(k)`, … or a tuple of them; default: all
    reduction        "mean" or "sum" over anchors, or "none" for one value per anchor (n,)
    """
    total, positives = _total_and_positives(pairs, alpha, weight, negatives)
    values = weight / alpha * total - positives.mean(1)
    return finish(values * alpha if scale_by_alpha else values, reduction)


def _total_and_positives(
    pairs: AnyPairs, alpha: float, weight: float, negatives: Negatives, *, may_be_empty: bool = False
) -> tuple[Tensor, Tensor]:
    """Check α and λ; return log Σ_k e^{αs_k}, (n,), and the similarities to the positives, (n, k)."""
    check_number("alpha", alpha, above=0.0)
    check_number("weight", weight, least=0.0)
    (total,) = pairs.reduce(LogSumExp(Scale(alpha)), negatives=negatives, may_be_empty=may_be_empty)
    return total, pairs.positives()


def _adapted(temperature: float, settings: Settings, positive: float) -> float:
    keywords = {key: settings[key] for key in ("alpha", "center") if key in settings}
    return float(adaptive(torch.full((1, 1), positive, dtype=torch.float64), base=temperature, **keywords))


@objective(tensor_settings=(), softness=Softness(nominal=_adapted))
def macl(
    pairs: AnyPairs,
    *,
    temperature: float = 0.1,
    alpha: float = 0.5,
    center: float = 0.0,
    negatives: Negatives = None,
    reduction: str = "mean",
) -> Tensor:
    """sg[1/(1-P)] · (-log P), P the positive's softmax probability at τ_a = τ₀(1 + α(A - A₀)) (MACL, Huang et al.).

    A is the batch's mean positive similarity. The weight cancels the factor 1 - P of NT-Xent's gradient, so that the
    gradient of the positive similarity is exactly -1/τ_a, no matter how similar the positive already is.

    pairs         the result of `two_views`, `views`, `cross`, `queue`, `bank` or `from_similarities`
    temperature   τ₀, a number
    alpha         α: how strongly the temperature follows A
    center        A₀: the A at which τ_a = τ₀
    negatives     which candidates are negatives: `other_views()`, `hardest(k)`, … or a tuple of them; default: all
    reduction     "mean" or "sum" over anchors, or "none" for one value per anchor (n,)
    """
    check_number("temperature", temperature, above=0.0)
    positives = pairs.positives()
    logit = Scale(1.0 / adaptive(positives, base=temperature, alpha=alpha, center=center))
    (total,) = pairs.reduce(LogSumExp(logit), negatives=negatives)
    gap = logit(positives) - total[:, None]  # log P/(1-P)
    # Value and gradient (that of -gap) are computed separately: 1/(1-P) overflows although 1/(1-P) · (-log P) tends to
    # 1.
    return finish((_reweighted(gap.detach()) - (gap - gap.detach())), reduction)


def _reweighted(gap: Tensor) -> Tensor:
    """Return -log(P)/(1-P) for log P/(1-P) = `gap`: (1 + 1/u) log(1 + u) with u = e^{-gap}."""
    # Two branches, each with an exponent ≤ 0 so that nothing overflows; the floor keeps log1p(u)/u from being 0/0.
    u = torch.exp(-gap.clamp(min=0)).clamp(min=1e-30)
    return torch.where(gap > 0, torch.log1p(u) / u * (1 + u), softplus(-gap) * (1 + torch.exp(gap.clamp(max=0))))


@objective(unit_vectors=True)  # the lower bound of N_g assumes that every negative has similarity -1
def hard_negative(
    pairs: AnyPairs,
    *,
    temperature: Temperature = 0.5,
    beta: float = 1.0,
    tau_plus: float = 0.1,
    negatives: Negatives = None,
    reduction: str = "mean",
) -> Tensor:
    """log(1 + N_g/p), p = e^{s⁺/τ}: hard negatives with debiasing (HN-CL, Robinson et al.).

        N_g = max((R - τ⁺ N p)/(1 - τ⁺), N e^{-1/τ}),   R = Σ_k e_k^{β+1} / mean_k e_k^β,   e_k = e^{s_k/τ}

    β = 0 gives the debiased loss of Chuang et al.; β = 0 and τ⁺ = 0 give NT-Xent.

    pairs         the result of `two_views`, `views`, `cross`, `queue`, `bank` or `from_similarities`
    temperature   τ: a number, one per anchor (n,), a function of similarity (`cosine(0.07, 0.2)`) or `learned(…)`
    beta          β: how strongly hard negatives outweigh easy ones
    tau_plus      τ⁺: probability that a negative has the anchor's class
    negatives     which candidates are negatives: `other_views()`, `hardest(k)`, … or a tuple of them; default: all
    reduction     "mean" or "sum" over anchors, or "none" for one value per anchor (n,)
    """
    check_number("beta", beta, least=0.0)
    check_number("tau_plus", tau_plus, least=0.0)
    if tau_plus >= 1:
        raise ValueError(f"tau_plus: expected a probability below 1, got {tau_plus!r}")
    logit, positives = temperature_logit(temperature, pairs.shape[0]), pairs.positives()
    # Computed in logarithms, since e_k^{β+1} overflows float32 at low temperatures.
    log_numerator, log_denominator, count = pairs.reduce(
        LogSumExp(logit.times(beta + 1)), LogSumExp(logit.times(beta)), Count(), negatives=negatives
    )
    log_count = count.log()[:, None]
    log_r = (log_numerator - log_denominator)[:, None] + log_count
    log_p = logit(positives)
    log_ng = log_r
    if tau_plus > 0:
        ratio = torch.exp((math.log(tau_plus) + log_count + log_p - log_r).clamp(max=1.0))  # τ⁺Np / R
        at_floor = ratio >= 1  # R - τ⁺Np is not positive, so that the lower bound of N_g applies
        # Masked before the logarithm, not after: log of a negative number would make the gradient NaN.
        log_rest = torch.log1p(-torch.where(at_floor, torch.zeros_like(ratio), ratio))
        log_ng = torch.where(at_floor, -torch.inf, log_r + log_rest) - math.log1p(-tau_plus)
    floor = log_count + logit(torch.full_like(positives, -1.0))
    return finish(softplus(torch.maximum(log_ng, floor) - log_p), reduction)


@objective
def cmc(
    pairs: AnyPairs, *, temperature: Temperature = 0.07, negatives: Negatives = None, reduction: str = "mean"
) -> Tensor:
    """NT-Xent of view v against view w, averaged over all ordered pairs of views v ≠ w (CMC, Tian et al., Eq. 8).

    The paper sums over pairs of views, with V views V (V - 1) times this mean; the mean keeps learning rates comparable between
    losses. Each positive is contrasted with the m - 1 negatives of its own view only. On `queue` and `bank`, whose rows belong
    to no view, it is contrasted with all stored rows.

    pairs         the result of `two_views`, `views`, `cross`, `queue`, `bank` or `from_similarities`
    temperature   τ: a number, or a function of similarity
    negatives     which candidates are negatives: `other_views()`, `hardest(k)`, … or a tuple of them; default: all
    reduction     "mean" or "sum" over anchors, or "none" for one value per anchor (n,)
    """
    if not pairs.has_views:
        return nt_xent(pairs, temperature=temperature, negatives=negatives, reduction=reduction)
    if isinstance(temperature, Tensor) and temperature.ndim == 1:
        raise ValueError("temperature: cmc takes a number or a function of similarity, not one per anchor")
    values: list[list[Tensor]] = [[] for _ in range(pairs.view_count)]
    for v, _, between in pairs.between_views():
        values[v].append(nt_xent(between, temperature=temperature, negatives=negatives, reduction="none"))
    return finish(torch.cat([torch.stack(of_view).mean(0) for of_view in values]), reduction)
