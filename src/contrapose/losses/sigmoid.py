"""Objectives that judge each similarity on its own, by a sigmoid: no softmax over the negatives."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from contrapose.losses.finish import finish
from contrapose.losses.objective import objective
from contrapose.pairs import AnyPairs, Pairs, cross
from contrapose.pairs.negatives import Negatives
from contrapose.reduce import SoftplusSum, softplus
from contrapose.temperature import Learned, Temperature, temperature_logit
from contrapose.validate import check_number

__all__ = ["siglip"]


# Comparing in both directions counts each pair twice and doubles the anchors: the same loss, with a single normalisation.
@objective(make_pairs=partial(cross, symmetric=True))
def siglip(
    pairs: AnyPairs,
    *,
    temperature: Temperature = 0.1,
    bias: float | Tensor | Learned = -10.0,
    negatives: Negatives = None,
    reduction: str = "mean",
) -> Tensor:
    """log(1 + e^{-(s⁺/τ + b)}) + Σ_k log(1 + e^{s_k/τ + b}), b = `bias` (SigLIP, Zhai et al.).

    On `cross(image, text)`, or called as `siglip(image, text)`, this is the paper's loss: each of the m² pairs is
    classified as matching or not, and the sum is divided by m. Only m of the m² pairs match, so training starts
    with a negative bias, which predicts no match. Several positives are averaged. The paper learns temperature and bias:
    `Loss(siglip, temperature=learned(0.1), bias=learned_number(-10.0))`.

    pairs         the result of `two_views`, `cross`, …, or two tensors (m, d), one per side
    temperature   τ: a number or `learned(…)`
    bias          b: a number or `learned_number(…)`
    negatives     which candidates are negatives: `other_views()`, `hardest(k)`, … or a tuple of them; default: all
    reduction     "mean" or "sum" over anchors, or "none" for one value per anchor (n,)
    """
    logit, bias = temperature_logit(temperature, pairs.shape[0]), _check_bias(bias)
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


def _check_bias(bias: float | Tensor | Learned) -> float | Tensor:
    """Return the bias as a number or a floating point tensor without dimensions, or raise ValueError."""
    bias = bias() if isinstance(bias, Learned) else bias
    if not isinstance(bias, Tensor):
        check_number("bias", bias)
    elif bias.ndim or not bias.is_floating_point():
        raise ValueError(
            f"bias: expected a number or a floating point tensor without dimensions, "
            f"got shape {tuple(bias.shape)} of {bias.dtype}"
        )
    return bias
