"""Measurements across processes: whether they hold the same rows, and whether the gradient is that of the whole batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from contrapose.distributed import gather, world_size
from contrapose.doctor.call import Call
from contrapose.pairs import unit

_COMPARED_ROWS = 256  # rows of each process that are compared with those of the others
_MOST_ROWS = 8192  # rows of the whole batch above which its gradient is not computed


@torch.no_grad()
def same_rows(call: Call) -> dict[str, float]:
    """Return the share of rows that are as similar to the same row of another process as to their own positive.

    The share of other rows for which this holds is subtracted, so that it is near 0 before anything is learned.
    """
    first, second = (unit(side.detach()[:_COMPARED_ROWS]).float() for side in (call.sides[0], call.sides[-1]))
    own, count = first @ second.T, len(first)
    if count < 2:
        return {}
    positive = own.diagonal().mean()
    negative = (own.sum() - own.diagonal().sum()) / (count * (count - 1))
    middle = (positive + negative) / 2
    largest, rank = first.new_zeros(()), dist.get_rank()
    for other, rows in enumerate(gather(first.contiguous()).split(count)):
        if other != rank:
            alike = (first @ rows.T > middle).float()
            diagonal = alike.diagonal().mean()
            rest = (alike.sum() - alike.diagonal().sum()) / (count * (count - 1))
            largest = torch.maximum(largest, diagonal - rest)
    # All processes report the largest share, so that all of them have the same findings.
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return {"same_rows": float(largest)}


def gradient_agreement(call: Call, criterion: Callable[..., Tensor], whole: Callable[..., Tensor]) -> dict[str, float]:
    """Return how well the criterion's gradient agrees with that of `whole`, the same loss of all processes' rows in one.

    agreement   cosine of the two gradients over all rows: 1 if exact
    factor      their ratio after DistributedDataParallel's mean over processes: 1 if exact
    """
    size = world_size()
    if size * call.rows > _MOST_ROWS:
        return {}
    leaves = [side.detach().clone().requires_grad_() for side in call.sides]
    (live,) = _gradients(call.ask(criterion, leaves), leaves)
    gathered = [gather(side.detach()).float().requires_grad_() for side in call.sides]
    (reference,) = _gradients(whole(*gathered), gathered)
    own = slice(dist.get_rank() * call.rows, (dist.get_rank() + 1) * call.rows)
    reference = reference[:, own]
    live = live / size
    sums = torch.stack([(live * reference).sum(), live.square().sum(), reference.square().sum()])
    dist.all_reduce(sums)
    product, live_square, reference_square = sums.tolist()
    return {
        "agreement": product / max((live_square * reference_square) ** 0.5, 1e-300),
        "factor": product / max(reference_square, 1e-300),
        "world_size": float(size),
    }


def _gradients(value: Tensor, leaves: list[Tensor]) -> tuple[Tensor]:
    found = torch.autograd.grad(value, leaves, allow_unused=True)
    known = [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]
    return (torch.stack(known).double(),)
