"""Curves that describe a loss: its push on negatives and false negatives, its pull on the positive, and its hardness.

All values are ∂L/∂s by autograd at chosen similarities: one image in two views, with the same negatives in each view.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from contrapose.explanation.subject import Subject
from contrapose.metrics import Penalties, penalties
from contrapose.pairs import Similarities
from contrapose.temperature import ode_constant, ode_solution

POSITIVE_SIMILARITY = 0.7  # default similarity of the positive: a typical value in the middle of training


def _two_view_similarities(negatives: Tensor, positive: float) -> Similarities:
    """Return the similarities of two views of one image, each compared with the same negatives in both views."""
    m, negatives = len(negatives), negatives.double()
    view = torch.tensor([0, 1])
    return Similarities(
        positive=torch.full((2, 1), positive, dtype=torch.float64),
        negative=negatives.repeat(2, 2),
        anchor_id=torch.zeros(2, dtype=torch.long),
        pool_id=torch.arange(1, m + 1).repeat(2),
        anchor_view=view,
        pool_view=view.repeat_interleave(m),
        view_count=2,
    )


def _penalties_and_push(subject: Subject, negatives: Tensor, positive: float) -> tuple[Penalties, Tensor]:
    """Return the penalties, and the push on each of the m similarities, shape (m,), summed over anchors and views.

    Some losses repel only the other view; the sum over views makes all losses comparable.
    """
    result = penalties(subject, _two_view_similarities(negatives, positive))
    return result, result.push.reshape(2, 2, len(negatives)).sum((0, 1))


def evenly_spaced_negatives(subject: Subject, count: int = 2001) -> Tensor:
    """Return at least `count` similarities, evenly spaced over [-1, 1] (Wang & Liu, Fig. 3).

    A loss that selects its k hardest negatives gets 12 · k, so that the selection leaves a visible part unselected.
    """
    return torch.linspace(-1, 1, max(count, 12 * subject.least_negatives), dtype=torch.float64)


def typical_negatives(count: int = 4094, width: int = 128) -> Tensor:
    """Return `count` typical similarities of random directions in `width` dimensions, in ascending order.

    They are quantiles of the normal distribution with standard deviation 1/√width, which is very close to the exact
    distribution. Quantiles instead of random draws make the curves smooth and reproducible. 4094 is the number of negatives
    in a batch of 2048 images in two views.
    """
    quantile = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    normal: Tensor = torch.special.ndtri(quantile)
    return (normal / math.sqrt(width)).clamp(-1, 1)


def typical_negative_count(subject: Subject) -> int:
    """Return the number of typical negatives for this loss: at least 12 · k if the loss selects its k hardest negatives."""
    return max(4094, 12 * subject.least_negatives)


def relative_penalty(subject: Subject, s: Tensor, *, positive: float = POSITIVE_SIMILARITY) -> Tensor:
    """Return r(s), the share of the push on each of the similarities s (Wang & Liu, Fig. 3, for any loss).

    Absolute values sum to 1. A share below 0 means that a negative is pulled, as CACR does with distant negatives.
    """
    return _shares(_penalties_and_push(subject, s, positive)[1])


def _shares(push: Tensor) -> Tensor:
    # The clamp gives shares of 0 instead of NaN if nothing is pushed.
    return push / push.abs().sum().clamp(min=1e-300)


@dataclass(frozen=True)
class Sweep:
    """How the hardness of a loss depends on its temperature, with one entry for each factor."""

    factor: Tensor
    temperature: list[float]  # effective temperature; 0 and inf are its limits
    entropy: Tensor  # entropy of the relative penalty, as a fraction of its maximum
    hardest: Tensor  # share of the push on the hardest 1 %


def sweep(subject: Subject, factors: Tensor, *, positive: float = POSITIVE_SIMILARITY) -> Sweep:
    """Evaluate the loss with its temperature multiplied by each factor, on evenly spaced negatives."""
    s = evenly_spaced_negatives(subject)
    # Evaluated once unscaled, so that an error message about a bad setting shows the value that the user wrote.
    _penalties_and_push(subject, s, positive)
    is_hardest = s >= s.sort(descending=True).values[math.ceil(0.01 * len(s)) - 1]
    temperatures, entropies, hardest = [], [], []
    for factor in factors.tolist():
        result, push = _penalties_and_push(subject.at_scale(factor), s, positive)
        r = _shares(push).abs()
        temperatures.append(result.effective_temperature)
        entropies.append(torch.special.entr(r).sum() / math.log(len(s)))
        hardest.append(r[is_hardest].sum())
    return Sweep(factors, temperatures, torch.stack(entropies), torch.stack(hardest))


def false_negative_push(
    subject: Subject, s: Tensor, *, width: int = 128, positive: float = POSITIVE_SIMILARITY
) -> Tensor:
    """Return the push on one false negative at each similarity s, among typical negatives, divided by the mean push."""
    others = typical_negatives(typical_negative_count(subject), width)
    multiples = []
    for similarity in s.tolist():  # one at a time: several false negatives would change each other's share
        negatives = torch.cat([others, s.new_tensor([similarity], dtype=torch.float64)])
        r = relative_penalty(subject, negatives, positive=positive)
        multiples.append(r[-1] * len(r))
    return torch.stack(multiples)


def positive_pull(subject: Subject, s: Tensor, *, width: int = 128) -> tuple[Tensor, Tensor]:
    """Return the pull on the positive and the total push on the negatives, at each similarity s of the positive.

    The negatives are typical ones. Both tensors have the shape of s.
    """
    others = typical_negatives(typical_negative_count(subject), width)
    results = [_penalties_and_push(subject, others, similarity)[0] for similarity in s.tolist()]
    return (
        torch.stack([result.attraction.mean() for result in results]),
        torch.stack([result.repulsion.mean() for result in results]),
    )


def ode_curves(high: float, shares: tuple[float, ...] = (0.1, 0.5, 0.9)) -> list[tuple[str, Tensor, Tensor]]:
    """Return solutions of DySTreSS's differential equation with τ(±1) = `high`: (name, s, τ) for each side (its Fig. 2).

    The solutions fall for s < 0 and rise for s > 0, as Proposition 1 requires, only while δK < e^{-1/τ}/τ at τ = `high`.
    `shares` gives δK as multiples of this limit. Beyond the limit, the left side first rises from s = -1 before it falls.
    """
    curves = []
    for share in shares:
        delta_k = share * math.exp(-1 / high) / high
        for end in (-1, 1):
            # The solution is undefined at s = 0, so both sides stop just short of it.
            s = end * torch.linspace(0.01, 1, 100, dtype=torch.float64)
            tau = ode_solution(s, delta_k=delta_k, constant=ode_constant(delta_k=delta_k, high=high, at=end))
            curves.append((f"δK = {delta_k:.2g}", s, tau))
    return curves
