"""Numbers behind the pictures: what falls on a negative, on a false one, on the positive, and how it depends on sharpness.

All of it is ∂L/∂s by autograd at chosen similarities: one image in two views, the same negatives in each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from contrapose.explain.subject import Subject
from contrapose.metrics import Penalties, penalties
from contrapose.pairs import Similarities
from contrapose.temperature import ode_constant, ode_solution

POSITIVE = 0.7  # similarity of the positive, where nothing else is said: an encoder in the middle of training


def _meeting(negatives: Tensor, positive: float) -> Similarities:
    """Two views of one image, each against the same similarities in both views."""
    m, negatives = len(negatives), negatives.double()
    view = torch.tensor([0, 1])
    return Similarities(
        positive=torch.full((2, 1), positive, dtype=torch.float64),
        negative=negatives.repeat(2, 2),
        anchor_id=torch.zeros(2, dtype=torch.long),
        anchor_view=view,
        pool_view=view.repeat_interleave(m),
        views=2,
    )


def _asked(subject: Subject, negatives: Tensor, positive: float) -> tuple[Penalties, Tensor]:
    """The penalties, and the push on each of the given similarities, all views of both together."""
    found = penalties(subject, _meeting(negatives, positive))
    return found, found.push.reshape(2, 2, len(negatives)).sum((0, 1))


def even_negatives(subject: Subject, count: int = 2001) -> Tensor:
    """Similarities evenly on [-1, 1] (Wang & Liu, Fig. 3); more where the loss picks many of the hardest."""
    return torch.linspace(-1, 1, max(count, 12 * subject.least_negatives), dtype=torch.float64)


def typical_negatives(count: int = 4094, width: int = 128) -> Tensor:
    """Similarities of random directions in `width` dimensions: nearly normal with deviation 1/√width."""
    quantile = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    normal: Tensor = torch.special.ndtri(quantile)
    return (normal / math.sqrt(width)).clamp(-1, 1)


def others_of(subject: Subject) -> int:
    """How many typical negatives to ask with: more where the loss picks many of the hardest."""
    return max(4094, 12 * subject.least_negatives)


def relative_penalty(subject: Subject, s: Tensor, *, positive: float = POSITIVE) -> Tensor:
    """r(s): the share of the push on each of the similarities s (Wang & Liu, Fig. 3, for any loss).

    Sizes add up to 1. A share below 0 is a negative that is pulled, as CACR does with distant ones.
    """
    return _shares(_asked(subject, s, positive)[1])


def _shares(push: Tensor) -> Tensor:
    return push / push.abs().sum().clamp(min=1e-300)


@dataclass(frozen=True)
class Sweep:
    """How hardness depends on temperature; one entry for each factor."""

    factor: Tensor
    temperature: list[float]  # effective: 0 and infinity are the limits
    entropy: Tensor  # of the relative penalty, as a share of the largest possible
    hardest: Tensor  # share of the push on the hardest 1 %


def sweep(subject: Subject, factors: Tensor, *, positive: float = POSITIVE) -> Sweep:
    """The subject at each multiple of its temperature, on evenly spread negatives."""
    s = even_negatives(subject)
    _asked(subject, s, positive)  # a bad value is refused as it was written
    top = s >= s.sort(descending=True).values[math.ceil(0.01 * len(s)) - 1]
    temperatures, entropies, hardest = [], [], []
    for factor in factors.tolist():
        found, push = _asked(subject.at_scale(factor), s, positive)
        r = _shares(push).abs()
        temperatures.append(found.effective_temperature)
        entropies.append(torch.special.entr(r).sum() / math.log(len(s)))
        hardest.append(r[top].sum())
    return Sweep(factors, temperatures, torch.stack(entropies), torch.stack(hardest))


def false_negative_push(subject: Subject, s: Tensor, *, width: int = 128, positive: float = POSITIVE) -> Tensor:
    """The push on one false negative at each similarity, as a multiple of the mean push, among typical negatives."""
    others = typical_negatives(others_of(subject), width)
    found = []
    for value in s.tolist():
        r = relative_penalty(
            subject, torch.cat([others, s.new_tensor([value], dtype=torch.float64)]), positive=positive
        )
        found.append(r[-1] * len(r))
    return torch.stack(found)


def positive_pull(subject: Subject, s: Tensor, *, width: int = 128) -> tuple[Tensor, Tensor]:
    """(pull on the positive, push on all negatives) at each similarity of the positive, among typical negatives."""
    others = typical_negatives(others_of(subject), width)
    found = [_asked(subject, others, value)[0] for value in s.tolist()]
    return (
        torch.stack([f.attraction.mean() for f in found]),
        torch.stack([f.repulsion.mean() for f in found]),
    )


def ode_curves(high: float, shares: tuple[float, ...] = (0.1, 0.5, 0.9)) -> list[tuple[str, Tensor, Tensor]]:
    """Solutions of DySTreSS's differential equation with τ(±1) = `high`: (δK, s, τ) for each side (its Fig. 2).

    They fall on the left and rise on the right, as Proposition 1 wants it, while δK < e^{-1/τ}/τ at τ = `high`; `shares`
    are multiples of that. Beyond it the left side turns up from s = -1 before it falls.
    """
    curves = []
    for share in shares:
        product = share * math.exp(-1 / high) / high
        for at in (-1, 1):
            s = at * torch.linspace(0.01, 1, 100, dtype=torch.float64)
            tau = ode_solution(s, delta_k=product, constant=ode_constant(delta_k=product, high=high, at=at))
            curves.append((f"δK = {product:.2g}", s, tau))
    return curves
