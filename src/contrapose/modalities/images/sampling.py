"""Samples of a labelled data set in which every class has its share; always the same ones for the same labels."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from contrapose.randomness import permutation

# Fixed, and not the seed of a run: runs that differ in their seed are trained and evaluated on the same images.
_LIMIT, _HOLD_OUT = 1, 2


def sample(labels: Tensor | None, total: int, count: int) -> Tensor:
    """Return the indices of `count` of `total` samples in ascending order; each class keeps its share, at least one sample.

    If there are fewer samples than classes, the largest classes have one.
    """
    if labels is None:
        return permutation(total, _LIMIT)[:count].sort().values
    names, sizes = labels.unique(return_counts=True)
    kept = _shares(sizes.tolist(), count)
    return _draw(labels, dict(zip(names.tolist(), kept, strict=True)), _LIMIT)


def hold_out(labels: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Return the indices of the samples that stay and of those that are held out, a share of each class.

    A class of at least two samples has at least one of each; a single sample stays.
    """
    names, sizes = labels.unique(return_counts=True)
    counts = {c: min(n - 1, max(1, round(n * share))) for c, n in zip(names.tolist(), sizes.tolist(), strict=True)}
    held = _draw(labels, counts, _HOLD_OUT)
    stays = torch.ones(len(labels), dtype=torch.bool)
    stays[held] = False
    return stays.nonzero()[:, 0], held


def _shares(sizes: list[int], count: int) -> list[int]:
    """Divide `count` in proportion to the sizes of the classes.

    >>> _shares([100, 100, 2], 10), _shares([5, 3], 1)
    ([5, 4, 1], [1, 0])
    """
    quotas = [count * size / sum(sizes) for size in sizes]
    least = 1 if count >= len(sizes) else 0
    shares = [max(least, math.floor(quota)) for quota in quotas]
    by_remainder = sorted(range(len(sizes)), key=lambda c: shares[c] - quotas[c])
    for c in by_remainder[: max(0, count - sum(shares))]:
        shares[c] += 1
    while sum(shares) > count:  # the small classes got more than their share, which the largest one gives
        shares[shares.index(max(shares))] -= 1
    return shares


def _draw(labels: Tensor, counts: dict[int, int], seed: int) -> Tensor:
    """Return the indices of a random sample with so many of each class, in ascending order."""
    drawn = []
    for c, count in counts.items():
        members = (labels == c).nonzero()[:, 0]
        # One permutation per class: a smaller count draws a subset of what a larger one draws.
        drawn.append(members[permutation(len(members), seed, c)[:count]])
    return torch.cat(drawn).sort().values
