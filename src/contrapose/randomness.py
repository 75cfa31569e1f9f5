"""Random numbers as a function of (seed, epoch, index, view): the same on any device, in any order, with any workers.

The numbers are counter-based: a bijective mix of 64 bits (SplitMix64's finaliser) is applied to each key in turn. A
resumed run needs no generator state, and a batch can be split between workers or devices in any way.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# torch has no unsigned 64-bit arithmetic; signed multiplication wraps around to the same 64 bits.
_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed number: 2⁶⁴ divided by the golden ratio
_INVERSE = -1018231460777725123  # the inverse of _GOLDEN modulo 2⁶⁴
_FIRST, _SECOND = -4658895280553007687, -7723592293110705685  # the multipliers of SplitMix64


def _shift(x: Tensor, by: int) -> Tensor:
    """Shift right, filling with zeros (torch fills with the sign)."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _mix(x: Tensor) -> Tensor:
    """Apply the finaliser of SplitMix64."""
    x = (x ^ _shift(x, 30)) * _FIRST
    x = (x ^ _shift(x, 27)) * _SECOND
    return x ^ _shift(x, 31)


def bits(index: Tensor, *keys: int | Tensor) -> Tensor:
    """Return 64 random bits for each element of `index` (integers of any shape), different for every tuple of keys."""
    x = index.long()
    for key in keys:
        x = _mix(x * _GOLDEN + key)
    return _mix(x + _GOLDEN)


def uniform(index: Tensor, count: int, *keys: int | Tensor) -> Tensor:
    """Return `count` random numbers in [0, 1) for each index, (n,) -> (n, count), in float32.

    >>> a = uniform(torch.arange(5), 3, 0, 7)
    >>> torch.equal(a[[4, 2]], uniform(torch.tensor([4, 2]), 3, 0, 7))
    True
    """
    slots = torch.arange(count, device=index.device)
    # This equals bits + slots · golden, but torch.compile would compute slots · golden, a product of small integers and a
    # constant, in 32 bits.
    x = _mix(((bits(index, *keys) * _INVERSE)[:, None] + slots) * _GOLDEN)
    return _shift(x, 40).float() * 2.0**-24  # float32 holds 24 bits exactly, so rounding cannot produce 1


def permutation(size: int, *keys: int | Tensor, device: torch.device | None = None) -> Tensor:
    """Return the numbers 0…size-1 in an order determined by the keys.

    >>> sorted(permutation(5, 0, 1).tolist())
    [0, 1, 2, 3, 4]
    """
    return torch.argsort(bits(torch.arange(size, device=device), *keys), stable=True)


def blocked_permutation(blocks: Tensor, window: int, *keys: int) -> Tensor:
    """Return the numbers 0…n-1 in an order determined by the keys that visits one block after the other.

    Blocks are visited in random order, and samples are shuffled within windows of this many samples. Reading is then nearly
    sequential.

    blocks   the number of each sample's block (n,)

    >>> blocked_permutation(torch.tensor([0, 0, 1, 1]), 2, 5).sort().values.tolist()
    [0, 1, 2, 3]
    """
    count = int(blocks.max()) + 1
    rank = torch.empty(count, dtype=torch.long)
    rank[permutation(count, *keys, 1)] = torch.arange(count)
    sequential = torch.argsort(rank[blocks.long()], stable=True)
    shuffled = permutation(len(blocks), *keys, 2)
    return sequential[shuffled[torch.argsort(shuffled // window, stable=True)]]


def sample_classes(labels: Tensor, counts: Sequence[int], *keys: int) -> Tensor:
    """Return the indices of `counts[c]` random samples from each class c, class by class; all samples of a smaller class.

    labels   class numbers (n,)
    counts   number of samples to draw from class 0, 1, …
    keys     integers that determine which samples are drawn

    >>> sample_classes(torch.tensor([1, 0, 1, 1]), [1, 2], 0).tolist()[0]
    1
    """
    # Sorted once: a search for the members of each of ImageNet's classes would take half a minute.
    members = labels.argsort(stable=True).split(labels.bincount(minlength=len(counts)).tolist())
    # One permutation per class: the samples drawn with a smaller count are a subset of those drawn with a larger count.
    drawn = [
        part[permutation(len(part), *keys, c, device=part.device)[:count]]
        for c, (count, part) in enumerate(zip(counts, members, strict=True))
        if len(part)
    ]
    return torch.cat(drawn)
