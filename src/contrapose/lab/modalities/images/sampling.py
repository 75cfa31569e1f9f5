"""Stratified samples from a labelled data set; the same labels always give the same sample."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from contrapose.randomness import permutation, sample_classes

# A fixed key instead of the run's seed: runs with different seeds are trained and evaluated on the same images.
_LIMIT, _HOLD_OUT = 1, 2


def sample(labels: Tensor | None, total: int, count: int) -> Tensor:
    """Return the indices of `count` of `total` samples in ascending order; each class keeps its share, at least one sample.

    If `count` is less than the number of classes, only the largest classes get a sample.
    """
    if labels is None:
        return permutation(total, _LIMIT)[:count].sort().values
    sizes = labels.bincount().tolist()
    shares = iter(_shares([size for size in sizes if size], count))
    return sample_classes(labels, [next(shares) if size else 0 for size in sizes], _LIMIT).sort().values


def hold_out(labels: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Return the indices of the samples to keep and of the samples to hold out, which are a share of each class.

    A class with at least two samples has at least one sample on each side; a class's only sample is not held out.
    """
    counts = [max(0, min(size - 1, max(1, round(size * share)))) for size in labels.bincount().tolist()]
    held = sample_classes(labels, counts, _HOLD_OUT).sort().values
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
    while sum(shares) > count:  # small classes got more than their share, at the expense of the largest class
        shares[shares.index(max(shares))] -= 1
    return shares
