"""Measure a batch: its embeddings, and what the criterion does to their similarities."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from contrapose.doctor.call import Call
from contrapose.doctor.gradient import SimilarityGradient, similarity_gradient
from contrapose.doctor.look import Action, Side
from contrapose.doctor.quiet import CannotAsk
from contrapose.metrics import Penalties
from contrapose.pairs import Similarities, unit

ASKED_ROWS = 256  # rows of all sides together whose similarities the criterion is asked about
SEEN_ROWS = 1024  # rows of all sides together whose embeddings are compared
_MOST_PAIRS = 8  # pairs of rows that a look names
_USED = 1e-6  # of the largest gradient: above the rounding errors of similarities that a criterion does not use
_ORDERED_ROWS = 128  # rows whose order is compared with random orders
_ORDERS = 64  # random orders
_EQUAL = 1e-5  # relative difference below which two rows are equal: dropout or augmentation differ by far more
# A twin is at least this far on the way from the second most similar sample to the positive.
_TWIN = 0.8
_CLEAR = 0.05  # least distance in similarity between a positive and the second most similar sample, to name twins


def measure_sides(call: Call) -> tuple[Side, ...]:
    """Return the numbers of each side."""
    return tuple(_side(whole, part) for whole, part in zip(call.sides, call.subset(ASKED_ROWS).sides, strict=True))


@torch.no_grad()
def _side(whole: Tensor, part: Tensor) -> Side:
    norms = torch.linalg.vector_norm(whole.detach().float(), dim=1)
    columns = torch.linalg.vector_norm(whole.detach().float(), dim=0)
    u = unit(part.detach()).double()
    gram = u @ u.T if len(u) <= u.shape[1] else u.T @ u
    # On the CPU, since a GPU takes several times as long for one small matrix.
    singular = torch.linalg.eigvalsh(gram.nan_to_num().cpu()).clamp(min=0).sqrt()
    share = singular / singular.sum().clamp(min=1e-30)
    count = len(u)
    cosine = (u.sum(0).square().sum() - u.square().sum()) / max(1, count * (count - 1))
    values = torch.stack(
        [
            norms.mean().double(),
            (norms.std() / norms.mean().clamp(min=1e-30)).double(),
            (columns - 1).abs().max().double(),
            u.std(0, correction=0).mean() * math.sqrt(u.shape[1]),
            torch.special.entr(share).sum().exp().to(u.device),
            cosine,
            norms.sum().isfinite().double(),
        ]
    ).tolist()  # one transfer from the device
    norm, spread, column_error, deviation, rank, cosine_value, finite = values
    return Side(
        norm=norm,
        norm_spread=spread,
        column_error=column_error,
        deviation=deviation,
        rank=rank,
        cosine=cosine_value,
        requires_grad=whole.requires_grad,
        finite=bool(finite),
    )


@torch.no_grad()
def measure_pairs(call: Call) -> dict[str, Any]:
    """Return the numbers about positives, neighbours in the batch, duplicates and twins, as fields of `Look`."""
    part = call.subset(SEEN_ROWS)
    groups = part.groups
    if groups is None:
        return {}
    first, second = (unit(part.sides[k].detach()).float() for k in (0, min(1, len(part.sides) - 1)))
    positive = groups[:, None] == groups[None]
    cross = first @ second.T
    if len(part.sides) == 1:
        itself = torch.eye(len(cross), dtype=torch.bool, device=cross.device)
        cross = cross.masked_fill(itself, -torch.inf)
        positive = positive & ~itself
    fields = _retrieval(cross, positive) | _order(call)
    if len(part.sides) > 1:
        fields |= _between(first, second) | _repeated(part, first, second, cross)
    return fields


def _retrieval(cross: Tensor, positive: Tensor) -> dict[str, Any]:
    has = positive.any(1)
    finite = cross > -torch.inf
    nearest = cross.argmax(1, keepdim=True)
    hit = (positive.gather(1, nearest)[:, 0] & has).sum() / has.sum().clamp(min=1)
    chance = positive.sum() / finite.sum()
    zero = cross.new_zeros(())
    inside = torch.where(positive, cross, zero).sum() / positive.sum().clamp(min=1)
    other = finite & ~positive
    count = other.sum().clamp(min=1)
    outside = torch.where(other, cross, zero).sum() / count
    spread = (torch.where(other, cross - outside, zero).square().sum() / count).sqrt()
    numbers = torch.stack([hit, chance, inside, outside, spread]).tolist()
    hit_value, chance_value, mean_positive, mean_negative, negative_spread = numbers
    return {
        "retrieval": hit_value,
        "chance": chance_value,
        "positive": mean_positive,
        "negative": mean_negative,
        "negative_spread": negative_spread,
        "rows": len(cross),
    }


def _between(first: Tensor, second: Tensor) -> dict[str, Any]:
    """Return how far apart two sides are, and how many of their pairs are equal."""
    mean_first, mean_second = first.mean(0), second.mean(0)
    between = mean_first - mean_second
    spread = (first.var(0).sum() + second.var(0).sum()).div(2).sqrt().clamp(min=1e-12)
    gap = torch.linalg.vector_norm(between) / spread
    threshold = (mean_first + mean_second) @ between / 2
    own = torch.cat([first @ between > threshold, second @ between < threshold]).float().mean()
    equal = ((first - second).abs().amax(1) < _EQUAL * first.abs().amax(1)).float().mean()
    gap_value, separable, identical = torch.stack([gap, own, equal]).tolist()
    return {"gap": gap_value, "separable": separable, "identical": identical}


def _order(call: Call) -> dict[str, Any]:
    """Return how much more similar rows near each other in the batch are than in random order, in standard deviations.

    A permutation test: the deviation is that of the same statistic over random orders of the same rows.
    """
    count = min(call.rows, _ORDERED_ROWS)
    if count < 16 or len(call.sides) == 1 or call.labels is not None:  # samplers of classes draw them in blocks
        return {}
    # The mean of both sides tells more about the sample than either.
    u = unit(unit(call.sides[0].detach()[:count]) + unit(call.sides[1].detach()[:count])).float()
    cosine = (u @ u.T).fill_diagonal_(0.0)
    index = torch.arange(count, device=u.device)
    distance = (index[:, None] - index[None]).abs().float()
    # Short blocks are seen by neighbours, long ones by all distances.
    near = torch.stack([(distance <= 2).float(), -distance / count]).flatten(1)
    generator = torch.Generator().manual_seed(count)
    orders = [torch.arange(count), *(torch.randperm(count, generator=generator) for _ in range(_ORDERS))]
    order = torch.stack(orders).to(u.device)
    permuted = cosine[order[:, :, None], order[:, None]].flatten(1)
    values = permuted @ near.T
    both = (values / values[1:].std(0).clamp(min=1e-12)).sum(1)
    return {"order": float((both[0] - both[1:].mean()) / both[1:].std().clamp(min=1e-12))}


def _repeated(part: Call, first: Tensor, second: Tensor, cross: Tensor) -> dict[str, Any]:
    """Return rows of different samples with equal embeddings (duplicates), or as similar as positives (twins)."""
    count = len(cross)
    itself = torch.eye(count, dtype=torch.bool, device=cross.device)
    groups = part.groups
    assert groups is not None
    same = groups[:, None] == groups[None]
    equal = torch.zeros_like(itself)
    for u in (first, second):
        spread = u.std(0).norm()
        # If all rows are nearly equal, the side has collapsed, which is another finding.
        exact = unit(u.double())  # ‖u - v‖² = 2 - 2 uᵀv, of which float32 would lose all digits
        equal |= (2 - 2 * exact @ exact.T < _EQUAL**2) & (spread > 0.05)
    equal &= ~same
    mutual = torch.minimum(cross, cross.T).masked_fill(same, -torch.inf)
    best = mutual.topk(min(2, count), dim=1)
    own = cross.diagonal()
    following = best.values[:, -1]
    is_twin = best.values[:, 0] - following >= _TWIN * (own - following)
    is_twin &= own - following > _CLEAR
    partner = best.indices[:, 0]
    is_twin &= is_twin[partner] & (partner[partner] == torch.arange(count, device=cross.device))
    rows = torch.arange(count, device=cross.device) if part.kept is None else part.kept
    has_duplicate = equal.any(1)
    shares = torch.stack([has_duplicate.float().mean(), is_twin.float().mean()]).tolist()
    pairs: dict[str, Any] = {"duplicate_share": shares[0], "twin_share": shares[1]}
    if shares[0]:
        found = equal.triu(1).nonzero()[:_MOST_PAIRS]
        pairs["duplicates"] = tuple((a, b) for a, b in rows[found].tolist())
    if shares[1]:
        chosen = (is_twin & (partner > torch.arange(count, device=cross.device))).nonzero()[:_MOST_PAIRS, 0]
        pairs["twins"] = tuple((a, b) for a, b in torch.stack([rows[chosen], rows[partner[chosen]]], 1).tolist())
    return pairs


def measure_action(call: Call, make: Callable[[], Callable[..., Tensor]]) -> Action:
    """Return what a criterion does to the similarities of some rows; raise CannotAsk if it cannot be asked."""
    part = call.subset_to_ask(ASKED_ROWS)
    if part.groups is None:
        raise CannotAsk("positives are unknown: the criterion gets one tensor of embeddings without labels")
    result = similarity_gradient(part, make)
    at = penalties_of(part, result)
    total, same_id = at.push.abs().sum(1), at.at.same_id
    pushed = total > 1e-6 * total.amax()
    assert same_id is not None
    scalars = torch.stack(
        [
            result.value,
            result.mismatched,
            result.ideal,
            result.rescaled,
            result.moved,
            at.attraction.mean(),
            at.repulsion.mean(),
            (~same_id[pushed]).sum(1).double().mean(),
            at.entropy[pushed].exp().mean(),
            at.share_of_hardest(0.01)[pushed].mean(),
        ]
    ).tolist()
    names = (
        "loss",
        "mismatched",
        "ideal",
        "rescaled",
        "moved",
        "pull",
        "push",
        "negatives",
        "effective_negatives",
        "hardest_share",
    )
    values = dict(zip(names, scalars, strict=True))
    return Action(**values, rows=float(part.rows), temperature=at.effective_temperature)


def penalties_of(part: Call, result: SimilarityGradient) -> Penalties:
    """Return the gradient as the pull and the push on each row of the first side, with all other rows as its candidates.

    Some losses compare only the first side with the second. Gradients are multiplied by the number of anchors, so that they do
    not depend on it.
    """
    groups = part.groups
    assert groups is not None
    sides = len(part.sides)
    sample = groups.repeat(sides) if sides > 1 else groups
    same = sample[:, None] == sample[None]
    itself = torch.eye(len(sample), dtype=torch.bool, device=sample.device)
    if sides > 2 and not part.views_only:  # explicit negatives are candidates, even those of their own row
        explicit = torch.arange(len(sample), device=sample.device) >= 2 * part.rows
        same = same & ~(explicit[:, None] | explicit[None])
    positive = same & ~itself
    # Rows and columns of similarities that the criterion does not use have no gradient; they are no candidates.
    candidate = ~same & ~itself & _used(result.gradient, part.rows)
    anchors = slice(part.rows)
    positive, candidate, similarity = positive[anchors], candidate[anchors], result.similarity[anchors]
    scaled = result.gradient[anchors] * part.rows
    at = Similarities(positive=torch.where(positive, similarity, 0.0), negative=similarity, same_id=~candidate)
    return Penalties(at, torch.where(positive, -scaled, 0.0), torch.where(candidate, scaled, 0.0))


def _used(gradient: Tensor, rows: int) -> Tensor:
    """Return which similarities (R, R) the criterion uses, by blocks of two sides: CLIP compares no images with images.

    At a low temperature most gradients within a block are as small as rounding errors, so entries cannot tell it.
    """
    sides = len(gradient) // rows
    blocks = gradient.view(sides, rows, sides, rows)
    largest = blocks.abs().amax((1, 3))
    used = largest > _USED * largest.max()
    return used[:, None, :, None].expand_as(blocks).reshape_as(gradient)


def precision_error(call: Call, criterion: Callable[..., Tensor]) -> float | None:
    """Return the relative error of the gradient through low precision; None if nothing is in low precision now."""
    device = call.sides[0].device.type
    is_low = any(side.dtype in (torch.bfloat16, torch.float16) for side in call.sides)
    if not (is_low or torch.is_autocast_enabled(device)):
        return None
    part = call.subset_to_ask(ASKED_ROWS)
    gradients = []
    for exact in (False, True):
        leaves = [side.detach().clone().float() if exact else side.detach().clone() for side in part.sides]
        leaves = [leaf.requires_grad_() for leaf in leaves]
        with torch.autocast(device, enabled=torch.is_autocast_enabled(device) and not exact):
            value = part.ask(criterion, leaves)
        found = torch.autograd.grad(value.float() * len(leaves[0]), leaves, allow_unused=True)
        gradients.append(
            torch.cat([torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]).double()
        )
    low, reference = gradients
    return float((low - reference).norm() / reference.norm().clamp(min=1e-300))
