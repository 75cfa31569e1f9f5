"""What a loss does to each similarity: ∂L/∂s by autograd, for any objective on any pairs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from contrapose.pairs import AnyPairs, Pairs, Similarities
from contrapose.validate import check_number


@dataclass(frozen=True, eq=False)
class Penalties:
    """How hard an objective pulls each positive and pushes each negative (n anchors, m candidates).

    Gradients of n · L, so that each anchor's are those of its own share of a mean.
    """

    at: Similarities  # where it was asked
    pull: Tensor  # (n, k): -∂L/∂s⁺
    push: Tensor  # (n, m): ∂L/∂s; 0 for candidates that are no negatives

    @property
    def attraction(self) -> Tensor:
        """(n,): all of an anchor's pull."""
        return self.pull.sum(1)

    @property
    def repulsion(self) -> Tensor:
        """(n,): all of an anchor's push."""
        return self.push.sum(1)

    @property
    def relative(self) -> Tensor:
        """r_i (n, m): each negative's share of its anchor's push, |∂L/∂s_ij| / Σ_k |∂L/∂s_ik| (Wang & Liu, Eq. 5)."""
        size = self.push.abs()
        return size / size.sum(1, keepdim=True).clamp(min=torch.finfo(size.dtype).tiny)

    @property
    def entropy(self) -> Tensor:
        """H(r_i) (n,): log of the number of negatives when all are pushed alike, 0 when only one is."""
        entropy: Tensor = torch.special.entr(self.relative).sum(1)
        return entropy

    @property
    def effective_temperature(self) -> float:
        """1 / (slope of log r against s), least squares weighted by r: NT-Xent's τ, infinite for the simple loss.

        What a single temperature would have to be for the push to fall off with similarity as it does.
        """
        r, s = self.relative, self.at.negative
        centred = s - (r * s).sum(1, keepdim=True)
        log_r = torch.where(r > 0, r, 1.0).log()
        spread, slope = (r * centred.square()).sum(), (r * centred * log_r).sum()
        if not bool((r > 0).any()):  # nothing is pushed
            return math.nan
        if float(spread) < 1e-12:  # the hardest take it all, or all are equally similar
            least = s if self.at.same_id is None else s.masked_fill(self.at.same_id, torch.inf)
            return 0.0 if float((self._ranked.amax(1) - least.amin(1)).max()) > 1e-6 else math.inf
        return float(spread / slope) if float(slope) > 1e-4 * float(spread) else math.inf

    def share_of_hardest(self, fraction: float = 0.01) -> Tensor:
        """(n,): the share of the push that falls on the most similar ⌈fraction⌉ of an anchor's negatives."""
        check_number("fraction", fraction, above=0.0, most=1.0)
        s = self._ranked
        count = (s > -torch.inf).sum(1, keepdim=True)
        place = torch.arange(s.shape[1], device=s.device)
        ranked = self.relative.gather(1, s.argsort(1, descending=True))
        wanted = (count.double() * fraction - 1e-6).ceil().clamp(min=1)  # as `hardest` counts them
        return torch.where(place < wanted, ranked, 0.0).sum(1)

    def summary(self) -> dict[str, float | None]:
        """A few numbers for the record of a training run; None for an infinite temperature, and where nothing is pushed."""
        pushed = self.push.abs().sum(1) > 0  # an anchor that pushes nothing has no hardness
        temperature = self.effective_temperature
        return {
            "positive_similarity": float(self.at.positive.mean()),
            "hardest_similarity": float(self._ranked.amax(1).mean()),
            "penalty_entropy": float(self.entropy[pushed].mean()) if bool(pushed.any()) else None,
            "effective_temperature": temperature if math.isfinite(temperature) else None,
            "push_on_hardest_1pct": float(self.share_of_hardest(0.01)[pushed].mean()) if bool(pushed.any()) else None,
            "attraction": float(self.attraction.mean()),
            "repulsion": float(self.repulsion.mean()),
        }

    @property
    def _ranked(self) -> Tensor:
        """Similarities, -inf for candidates that are no negatives."""
        return (
            self.at.negative if self.at.same_id is None else self.at.negative.masked_fill(self.at.same_id, -torch.inf)
        )


def penalties(objective: Callable[[AnyPairs], Tensor], pairs: AnyPairs) -> Penalties:
    """∂L/∂s of an objective (any function of pairs that gives one number) at given pairs.

    s_ij counts as anchor i's; what a symmetric loss does to s_ji is in row j.

    >>> from functools import partial
    >>> from contrapose.losses import nt_xent
    >>> from contrapose.pairs import from_similarities
    >>> at = from_similarities(torch.tensor([0.9]), torch.tensor([[0.5, 0.0, -0.5]]))
    >>> found = penalties(partial(nt_xent, temperature=0.5), at)
    >>> found.relative  # softmax([1, 0, -1])
    tensor([[0.6652, 0.2447, 0.0900]])
    >>> round(found.effective_temperature, 4)
    0.5
    """
    given = pairs.similarities() if isinstance(pairs, Pairs) else pairs
    with torch.enable_grad():
        positive, negative = (s.detach().clone().requires_grad_() for s in (given.positive, given.negative))
        loss = objective(replace(given, positive=positive, negative=negative))
        if loss.ndim:
            raise ValueError(
                f"objective: expected one number, as reduction='mean' gives, got shape {tuple(loss.shape)}"
            )
        moved = torch.autograd.grad(loss, (positive, negative), allow_unused=True)
    pull, push = (torch.zeros_like(s) if g is None else g for g, s in zip(moved, (positive, negative), strict=True))
    n = len(given.negative)
    detached = replace(given, positive=positive.detach(), negative=negative.detach())
    return Penalties(detached, -n * pull.detach(), n * push.detach())
