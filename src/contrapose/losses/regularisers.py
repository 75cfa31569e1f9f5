"""Regularisers: they keep embeddings apart and pull nothing, so they are added to another loss.

    Loss("simclr(temperature=0.2) + 0.1*koleo()")
    nt_xent(two_views(z1, z2)) + 0.1 * koleo(z1, z2)

`koleo` and `sigreg` depend on the whole batch, so several processes gather it first, as for the losses of redundancy.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from contrapose.embeddings import Embeddings, State
from contrapose.losses.finish import finish
from contrapose.losses.objective import objective
from contrapose.pairs import AnyPairs, unit
from contrapose.pairs.negatives import Negatives, may_leave_none
from contrapose.randomness import uniform
from contrapose.reduce import Count, SumOfSquares
from contrapose.reduce.unit import full_precision
from contrapose.validate import check_count, check_embeddings, check_number, check_values

__all__ = ["StepCount", "koleo", "sigreg", "spread_out"]

_BLOCK = 2**24  # similarities that `koleo` computes at once


@objective
def spread_out(pairs: AnyPairs, *, negatives: Negatives = None, reduction: str = "mean") -> Tensor:
    """mean_k s_k²: negatives should be orthogonal to the anchor, not opposite (Zhang et al., spread-out; M₂ of Eq. 6).

    It is the second moment of the negatives' similarities, which is 1/d for random directions in d dimensions. The paper's
    regulariser is M₁² + max(0, M₂ - 1/d) with the mean similarity M₁; without the first term and the margin, the minimum
    is 0 where there are at most d orthogonal groups.

    pairs       the result of `two_views`, `views`, `cross`, `queue`, `bank` or `from_similarities`
    negatives   which candidates are negatives: `other_views()`, `hardest(k)`, … or a tuple of them; default: all
    reduction   "mean" or "sum" over anchors, or "none" for one value per anchor (n,)
    """
    empty = may_leave_none(negatives)
    total, count = pairs.reduce(SumOfSquares(), Count(), negatives=negatives, may_be_empty=empty)
    return finish(total / count.clamp(min=1), reduction)


@objective(takes="embeddings")
def koleo(embeddings: Embeddings, *, eps: float = 1e-8) -> Tensor:
    """-mean_i log(min_j ‖z_i - z_j‖ + ε), unit vectors of one view, j another sample (KoLeo, Sablayrolles et al., Eq. 3).

    Each row is pushed away from its nearest neighbour only, with a force that grows as they come closer: the estimator of
    the entropy by Kozachenko and Leonenko. The loss is the mean over views. DINOv2 and lightly compute the same on one
    process; DINOv2 uses it with the weight 0.1 on the class tokens. lightly also adds ε to each coordinate of z_i - z_j.

    embeddings   `Embeddings`, or two tensors (m, d), one per view
    eps          ε, which keeps the loss of equal rows finite

    >>> z = torch.eye(3)
    >>> round(koleo(z, z).item(), 4)  # all distances are √2
    -0.3466
    """
    check_number("eps", eps, least=0.0)
    z = _rows(embeddings)
    ids = torch.arange(z.shape[1], device=z.device) if embeddings.ids is None else embeddings.ids.to(z.device)
    check_values(
        (ids != ids[0]).any(), lambda: f"ids: all {len(ids)} samples have the id {int(ids[0])}: none has a neighbour"
    )
    values = []
    with full_precision(z):
        for view in unit(z):
            # The distance is computed from the difference, since √(2 - 2s) has few digits where rows nearly coincide.
            apart = (view - view[_nearest(view.detach(), ids)]).norm(dim=1)
            values.append(-(apart + eps).log().mean())
    return torch.stack(values).mean()


def _nearest(rows: Tensor, ids: Tensor) -> Tensor:
    """Return for each row the position of the most similar row of another sample, (m,)."""
    found = []
    for part, part_ids in zip(rows.split(size := max(1, _BLOCK // len(rows))), ids.split(size), strict=True):
        found.append((part @ rows.T).masked_fill_(part_ids[:, None] == ids, -torch.inf).argmax(1))
    return torch.cat(found)


class StepCount(State):
    """Counts the steps, so that `sigreg` draws other directions in each; the same on all processes and in a resumed run.

    `Loss` makes it by itself: `Loss(sigreg)`.
    """

    step: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def settings(self, batch: Embeddings) -> dict[str, Tensor]:
        """Return the step as an argument of `sigreg`."""
        return {"step": self.step}

    def update(self, batch: Embeddings, **settings: object) -> None:
        """Count the step."""
        self.step += 1


@objective(takes="embeddings", provided=("step",), own_state=StepCount)
def sigreg(
    embeddings: Embeddings, *, slices: int = 256, points: int = 17, limit: float = 3.0, step: int | Tensor = 0
) -> Tensor:
    """m ∫ |mean_i e^{itx_i} - e^{-t²/2}|² e^{-t²/2} dt with x_i = ⟨z_i, a⟩, averaged over directions a (SIGReg, LeJEPA).

    This is the statistic of Epps and Pulley for the hypothesis that the embeddings' projections follow N(0, 1): it is lowest for
    an isotropic normal distribution (Balestriero & LeCun, arXiv 2511.08544, Sec. 4). The embeddings are not normalised,
    so that their scale is learned too. The integral over [-`limit`, `limit`] is a trapezoidal sum, as in the authors'
    code. The loss is the mean over views. With `Loss`, the directions are new in each step.

    embeddings   `Embeddings`, or two tensors (m, d), one per view
    slices       number of random directions
    points       number of points from 0 to `limit` in the trapezoidal sum
    limit        end of the integral
    step         number from which the directions are drawn, such as the training step
    """
    check_count("slices", slices, least=1)
    check_count("points", points, least=2)
    check_number("limit", limit, above=0.0)
    z = _rows(embeddings)
    t = torch.linspace(0.0, limit, points, dtype=z.dtype, device=z.device)
    normal = (-t.square() / 2).exp()
    weight = torch.full_like(t, 2 * limit / (points - 1))  # twice: the integrand is even
    weight[[0, -1]] /= 2
    with full_precision(z):
        projected = z @ _directions(z, slices, step).T  # (V, m, slices)
    # One point after the other: all of them at once would take `points` times the memory of the projections.
    distance = torch.stack(
        [
            ((projected * at).cos().mean(1) - value).square() + (projected * at).sin().mean(1).square()
            for at, value in zip(t, normal, strict=True)
        ],
        -1,
    )
    return z.shape[1] * (distance @ (weight * normal)).mean()


def _directions(like: Tensor, count: int, step: int | Tensor) -> Tensor:
    """Return random unit vectors (count, d), a function of the step."""
    width = like.shape[-1]
    index = torch.arange(count, device=like.device)
    key = step.to(like.device) if isinstance(step, Tensor) else step
    radius, angle = uniform(index, 2 * width, key).to(like.dtype).split(width, 1)
    # Two uniform numbers make a normal one (Box and Muller); 1 - u is never 0.
    normal = (-2 * torch.log1p(-radius)).sqrt() * (2 * math.pi * angle).cos()
    return torch.nn.functional.normalize(normal, dim=1)


def _rows(embeddings: Embeddings) -> Tensor:
    """Return the embeddings (V, m, d) in float32 or better, or raise ValueError."""
    z = embeddings.z
    check_embeddings("z", z, 3)
    if z.shape[1] < 2:
        raise ValueError(f"z: expected at least two samples, (V, m, d), got shape {tuple(z.shape)}")
    return z if z.dtype == torch.float64 else z.float()
