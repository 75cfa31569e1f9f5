"""Mean similarities in O(n d), without computing a similarity: the mean of z_i · p_j is z_i · (mean of p_j).

The sum over an anchor's negatives is the sum over the pool minus the rows with the anchor's own id.
"""

from __future__ import annotations

import torch
from torch import Tensor

from contrapose.reduce.block import Selection
from contrapose.reduce.statistics import Count, Mean, Statistic


def means(anchor: Tensor, pool: Tensor, selection: Selection, statistics: tuple[Statistic, ...]) -> tuple[Tensor, ...]:
    """Return means and counts over all negatives, (n,) each."""
    count = selection.kept_counts(anchor.dtype)
    if all(isinstance(s, Count) for s in statistics):
        return tuple(count for _ in statistics)
    parts = [
        (anchor[rows] * _sum_of_negatives(pool[columns], selection.pool_id[columns], selection.anchor_id[rows])).sum(1)
        for rows, columns in selection.runs
    ]
    mean = torch.cat(parts) / count
    return tuple(mean if isinstance(s, Mean) else count for s in statistics)


def _sum_of_negatives(pool: Tensor, pool_id: Tensor, anchor_id: Tensor) -> Tensor:
    """Return, for each anchor, the sum of the pool rows with another id, (n, d)."""
    return pool.sum(0) - group_sums(pool, pool_id, anchor_id)


def group_sums(pool: Tensor, pool_key: Tensor, anchor_key: Tensor) -> Tensor:
    """Return, for each anchor, the sum of the pool rows with its key (a sample id or a label), (n, d)."""
    keys, order = pool_key.sort(stable=True)
    # Group numbers by cumulative sum and not by torch.unique, whose output size would have to be read from the device.
    group = torch.cat([keys.new_zeros(1), (keys[1:] != keys[:-1]).cumsum(0)])
    sums = torch.zeros_like(pool).index_add(0, group, pool[order])
    position = torch.searchsorted(keys, anchor_key.contiguous()).clamp(max=len(keys) - 1)
    # An anchor's key need not occur in the pool; the search then ends at another key.
    return torch.where((keys[position] == anchor_key)[:, None], sums[group[position]], 0.0)


def group_counts(pool_key: Tensor, anchor_key: Tensor) -> Tensor:
    """Return, for each anchor, the number of pool rows with its key, (n,)."""
    # By binary search in sorted keys, O(m log m): comparing all pairs of keys would store an n × m matrix.
    keys, wanted = pool_key.sort().values, anchor_key.contiguous()
    return torch.searchsorted(keys, wanted, right=True) - torch.searchsorted(keys, wanted)
