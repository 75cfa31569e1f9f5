"""How a loss acts on each similarity: ∂L/∂s by autograd, for any objective on any pairs.

The loss pulls an anchor towards a positive by -∂L/∂s⁺ and pushes it away from a negative by ∂L/∂s.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from contrapose.pairs import AnyPairs, Similarities
from contrapose.validate import check_number


@dataclass(frozen=True, eq=False)
class Penalties:
    """How strongly an objective pulls each positive and pushes each negative (n anchors, m candidates).

    These are gradients of n · L, so that values do not depend on the number of anchors in the mean.
    """

    at: Similarities  # the similarities at which the gradient was taken
    pull: Tensor  # (n, k): -∂L/∂s⁺
    push: Tensor  # (n, m): ∂L/∂s; 0 for candidates that are not negatives

    @property
    def attraction(self) -> Tensor:
        """The total pull on each anchor, shape (n,)."""
        return self.pull.sum(1)

    @property
    def repulsion(self) -> Tensor:
        """The total push on each anchor, shape (n,)."""
        return self.push.sum(1)

    @property
    def relative(self) -> Tensor:
        """Each negative's share of its anchor's push, r_ij = |∂L/∂s_ij| / Σ_k |∂L/∂s_ik|, (n, m) (Wang & Liu, Eq. 5)."""
        magnitude = self.push.abs()
        # An anchor that pushes nothing gets shares of 0, not NaN.
        return magnitude / magnitude.sum(1, keepdim=True).clamp(min=torch.finfo(magnitude.dtype).tiny)

    @property
    def entropy(self) -> Tensor:
        """The entropy H(r_i), shape (n,): log m if all m negatives are pushed equally, 0 if only one is pushed."""
        entropy: Tensor = torch.special.entr(self.relative).sum(1)
        return entropy

    @property
    def effective_temperature(self) -> float:
        """The temperature at which NT-Xent would distribute its push over the negatives in the same way.

        It is 1 / (slope of log r against s), fitted by least squares with weights r: τ for NT-Xent, inf for the simple
        loss, 0 for the triplet loss, and NaN if nothing is pushed.
        """
        r, s = self.relative, self.at.negative
        centred = s - (r * s).sum(1, keepdim=True)
        log_r = torch.where(
            r > 0, r, 1.0
        ).log()  # negatives with r = 0 have weight 0; log 1 keeps 0 · log r from being NaN
        spread, slope = (r * centred.square()).sum(), (r * centred * log_r).sum()
        if not bool((r > 0).any()):
            return math.nan
        if float(spread) < 1e-12:
            # No slope can be fitted: all pushed negatives are equally similar. If less similar negatives exist, only the
            # hardest are pushed, which is the limit τ → 0; otherwise any temperature gives the same push.
            lowest = s if self.at.same_id is None else s.masked_fill(self.at.same_id, torch.inf)
            return 0.0 if float((self._negatives_only.amax(1) - lowest.amin(1)).max()) > 1e-6 else math.inf
        # A slope of 0 or below means that similar negatives are not pushed harder: no finite temperature does that.
        return float(spread / slope) if float(slope) > 1e-4 * float(spread) else math.inf

    def share_of_hardest(self, fraction: float = 0.01) -> Tensor:
        """Return the share of each anchor's push that falls on its ⌈fraction · m⌉ most similar negatives, shape (n,)."""
        check_number("fraction", fraction, above=0.0, most=1.0)
        s = self._negatives_only
        count = (s > -torch.inf).sum(1, keepdim=True)
        rank = torch.arange(s.shape[1], device=s.device)
        sorted_shares = self.relative.gather(1, s.argsort(1, descending=True))
        # 0.07 · 100 is slightly above 7 in binary. The same correction as in `hardest` keeps the two counts equal.
        hardest_count = (count.double() * fraction - 1e-6).ceil().clamp(min=1)
        return torch.where(rank < hardest_count, sorted_shares, 0.0).sum(1)

    def summary(self) -> dict[str, float | None]:
        """Return a few numbers for the records of a training run, with None for those that are infinite or undefined."""
        pushed = self.push.abs().sum(1) > 0  # hardness is undefined for an anchor that pushes nothing
        temperature = self.effective_temperature
        return {
            "positive_similarity": float(self.at.positive.mean()),
            "hardest_similarity": float(self._negatives_only.amax(1).mean()),
            "penalty_entropy": float(self.entropy[pushed].mean()) if bool(pushed.any()) else None,
            "effective_temperature": temperature if math.isfinite(temperature) else None,
            "push_on_hardest_1pct": float(self.share_of_hardest(0.01)[pushed].mean()) if bool(pushed.any()) else None,
            "attraction": float(self.attraction.mean()),
            "repulsion": float(self.repulsion.mean()),
        }

    @property
    def _negatives_only(self) -> Tensor:
        """Similarities (n, m), with -inf for candidates that are not negatives."""
        return (
            self.at.negative if self.at.same_id is None else self.at.negative.masked_fill(self.at.same_id, -torch.inf)
        )


def penalties(objective: Callable[[AnyPairs], Tensor], pairs: AnyPairs) -> Penalties:
    """Return ∂L/∂s of an objective, any function of pairs that returns a scalar, at the given pairs.

    s_ij belongs to anchor i: if a symmetric loss also depends on s_ji, that derivative is in row j.

    objective   function of pairs that returns a scalar, such as `partial(nt_xent, temperature=0.5)`
    pairs       the result of `two_views`, `from_similarities`, …

    >>> from functools import partial
    >>> from contrapose.losses import nt_xent
    >>> from contrapose.pairs import from_similarities
    >>> at = from_similarities(torch.tensor([0.9]), torch.tensor([[0.5, 0.0, -0.5]]))
    >>> result = penalties(partial(nt_xent, temperature=0.5), at)
    >>> result.relative  # softmax([1, 0, -1])
    tensor([[0.6652, 0.2447, 0.0900]])
    >>> round(result.effective_temperature, 4)
    0.5
    """
    at = pairs if isinstance(pairs, Similarities) else pairs.similarities()
    with torch.enable_grad():  # the caller may be inside torch.no_grad
        # Copies as leaves of the graph: no gradient reaches the embeddings or the encoder.
        positive, negative = (s.detach().clone().requires_grad_() for s in (at.positive, at.negative))
        loss = objective(replace(at, positive=positive, negative=negative))
        if loss.ndim:
            raise ValueError(f"objective: expected a scalar, as with reduction='mean', got shape {tuple(loss.shape)}")
        # allow_unused: a loss may ignore the positives or the negatives.
        gradients = torch.autograd.grad(loss, (positive, negative), allow_unused=True)
    pull, push = (
        torch.zeros_like(s) if gradient is None else gradient
        for gradient, s in zip(gradients, (positive, negative), strict=True)
    )
    n = len(at.negative)
    detached = replace(at, positive=positive.detach(), negative=negative.detach())
    return Penalties(detached, -n * pull.detach(), n * push.detach())
