"""Mean similarities without any similarity: z_i · (Σ p - those of its own image) / count, in O(n d)."""

from __future__ import annotations

import torch
from torch import Tensor

from contrapose.reduce.block import Selection
from contrapose.reduce.statistics import Count, Mean, Statistic


def means(
    anchor: Tensor, pool: Tensor, selection: Selection, statistics: tuple[Statistic, ...]
) -> tuple[Tensor, ...] | None:
    """Means and counts of all negatives; None where something else is asked for."""
    if selection.hardest is not None or not all(isinstance(s, Mean | Count) for s in statistics):
        return None
    count = selection.chosen(anchor.dtype)
    if all(isinstance(s, Count) for s in statistics):
        return tuple(count for _ in statistics)
    parts = [
        (anchor[rows] * _others(pool[columns], selection.pool_id[columns], selection.anchor_id[rows])).sum(1)
        for rows, columns in selection.runs
    ]
    mean = torch.cat(parts) / count
    return tuple(mean if isinstance(s, Mean) else count for s in statistics)


def _others(pool: Tensor, pool_id: Tensor, anchor_id: Tensor) -> Tensor:
    """(n, d): for each anchor the sum of the pool rows with another id."""
    ids, order = pool_id.sort(stable=True)
    group = torch.cat([ids.new_zeros(1), (ids[1:] != ids[:-1]).cumsum(0)])
    sums = torch.zeros_like(pool).index_add(0, group, pool[order])
    place = torch.searchsorted(ids, anchor_id.contiguous()).clamp(max=len(ids) - 1)
    own = torch.where((ids[place] == anchor_id)[:, None], sums[group[place]], 0.0)
    return pool.sum(0) - own
