"""Copies among documents: rows that are equal to an earlier row, or that have its id."""

from __future__ import annotations

import torch
from torch import Tensor

from contrapose.randomness import bits

_CHUNK = 2**22  # coordinates hashed or compared at a time
_FIRST = 8  # coordinates that tell most rows apart, so that few rows are hashed whole


def first_copies(rows: Tensor, ids: Tensor | None) -> Tensor:
    """Return, for each row (m, d), the index of the first row that is equal to it, (m,); or, with ids (m,), that has its id."""
    if ids is not None:
        return _first_of_each(ids)
    index = torch.arange(len(rows), device=rows.device)
    _, number, count = _hash(rows[:, :_FIRST]).unique(return_inverse=True, return_counts=True)
    alike = (count[number] > 1).nonzero()[:, 0]
    if not len(alike):
        return index
    chunk, first = max(1, _CHUNK // rows.shape[1]), index.clone()
    first[alike] = alike[_first_of_each(torch.cat([_hash(rows[part]) for part in alike.split(chunk)]))]
    for part in (first != index).nonzero()[:, 0].split(chunk):
        # Different rows may have the same hash.
        equal = (rows[part] == rows[first[part]]).all(1)
        first[part] = torch.where(equal, first[part], part)
    return first


def _first_of_each(keys: Tensor) -> Tensor:
    """Return the index of the first element that equals each element, (m,)."""
    unique, number = keys.unique(return_inverse=True)
    index = torch.arange(len(keys), device=keys.device)
    first = index.new_full((len(unique),), len(keys)).scatter_reduce_(0, number, index, "amin")
    return first[number]


def _hash(rows: Tensor) -> Tensor:
    """Return a number for each row (n, d), which equal rows have in common."""
    # 0 and -0 are equal and have different bits; their sums with 0 have the same.
    integers = (rows + 0.0).view(torch.int64 if rows.dtype == torch.float64 else torch.int32).long()
    # Integers wrap around, so the sum is a hash.
    return (integers * bits(torch.arange(rows.shape[1], device=rows.device))).sum(1)
