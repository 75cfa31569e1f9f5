"""Objectives that judge each similarity on its own, by a sigmoid: no softmax over the negatives."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from contrapose.losses.finish import finish
from contrapose.losses.objective import objective
from contrapose.pairs import AnyPairs, Pairs, cross
from contrapose.pairs.negatives import Negatives
from contrapose.reduce import Logit, Scale, SoftplusSum, softplus
from contrapose.temperature import Learned, Temperature, temperature_logit
from contrapose.validate import check_number

__all__ = ["siglip"]

_BIAS = -10.0  # SigLIP's start: predicts no match


# Comparing in both directions counts each pair twice and doubles the anchors: the same loss, with a single normalisation.
@objective(make_pairs=partial(cross, symmetric=True))
def siglip(
    pairs: AnyPairs,
    *,
    temperature: Temperature = 0.1,
    bias: float | Tensor | Learned = _BIAS,
    relative_bias: float | Tensor | Learned | None = None,
    negatives: Negatives = None,
    reduction: str = "mean",
) -> Tensor:
    """log(1 + e^{-(s⁺/τ + b)}) + Σ_k log(1 + e^{s_k/τ + b}), b = `bias` (SigLIP, Zhai et al.).

    On `cross(image, text)`, or called as `siglip(image, text)`, this is the paper's loss: each of the m² pairs is
    classified as matching or not, and the sum is divided by m. Only m of the m² pairs match, so training starts
    with a negative bias, which predicts no match. Several positives are averaged. The paper learns temperature and bias:
    `Loss(siglip, temperature=learned(0.1), bias=learned_number(-10.0))`.

    With `relative_bias` b_rel, the logit is (s - b_rel)/τ, that is, b = -b_rel/τ (Bangachev et al., arXiv 2509.18552):
    b_rel is the similarity at which a pair is undecided, whatever the temperature, and a step of the temperature does not
    move it. `Loss(siglip, temperature=learned(0.1), relative_bias=learned_number(1.0))` starts where SigLIP does.

    pairs           the result of `two_views`, `cross`, …, or two tensors (m, d), one per side
    temperature     τ: a number or `learned(…)`
    bias            b: a number or `learned_number(…)`
    relative_bias   b_rel, in place of `bias`: a number or `learned_number(…)`; the temperature is then one for all pairs
    negatives       which candidates are negatives: `other_views()`, `hardest(k)`, … or a tuple of them; default: all
    reduction       "mean" or "sum" over anchors, or "none" for one value per anchor (n,)
    """
    logit = temperature_logit(temperature, pairs.shape[0])
    if relative_bias is None:
        bias = _number("bias", bias)
    else:
        _check_only(bias)
        bias = -_number("relative_bias", relative_bias) * _one_factor(logit)
    if reduction == "mean" and isinstance(pairs, Pairs):
        loss = pairs.mean_sigmoid_loss(logit, bias, negatives=negatives)
        if loss is not None:
            return loss
    positives = pairs.positives()
    offset = bias.to(positives) if isinstance(bias, Tensor) else bias
    attraction, repulsion = softplus(-(logit(positives) + offset)).mean(1), SoftplusSum(logit, bias)
    if reduction == "mean":
        return attraction.mean() + pairs.sum(repulsion, negatives=negatives) / pairs.shape[0]
    return finish(attraction + pairs.reduce(repulsion, negatives=negatives)[0], reduction)


def _number(name: str, value: float | Tensor | Learned) -> float | Tensor:
    """Return a bias as a number or a floating point tensor without dimensions, or raise ValueError."""
    value = value() if isinstance(value, Learned) else value
    if not isinstance(value, Tensor):
        check_number(name, value)
    elif value.ndim or not value.is_floating_point():
        raise ValueError(
            f"{name}: expected a number or a floating point tensor without dimensions, "
            f"got shape {tuple(value.shape)} of {value.dtype}"
        )
    return value


def _check_only(bias: float | Tensor | Learned) -> None:
    if not isinstance(bias, float) or bias != _BIAS:
        raise ValueError(
            f"bias, relative_bias: expected one of them, got both, with bias={bias!r}; "
            "the method siglip_relative of the catalogue has only relative_bias"
        )


def _one_factor(logit: Logit) -> float | Tensor:
    """Return 1/τ, one number for all pairs, or raise ValueError."""
    factor = logit.factor if isinstance(logit, Scale) else None
    if factor is None or (isinstance(factor, Tensor) and factor.ndim):
        raise ValueError(
            "temperature: with relative_bias, expected a number or learned(…), since -b_rel/τ is one bias for all pairs"
        )
    return factor
