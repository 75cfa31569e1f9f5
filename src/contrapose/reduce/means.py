"""Mean similarities in O(n d), without computing a similarity: the mean of z_i · p_j is z_i · (mean of p_j).

The sum over an anchor's negatives is the sum over the pool less the rows with the anchor's own id.
"""

from __future__ import annotations

import torch
from torch import Tensor

from contrapose.reduce.block import Selection
from contrapose.reduce.statistics import Count, Mean, Statistic


def means(
    anchor: Tensor, pool: Tensor, selection: Selection, statistics: tuple[Statistic, ...]
) -> tuple[Tensor, ...] | None:
    """Return means and counts over all negatives, (n,) each; None if another statistic or the hardest are asked for."""
    if selection.hardest is not None or not all(isinstance(s, Mean | Count) for s in statistics):
        return None
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
    ids, order = pool_id.sort(stable=True)
    # Group numbers by cumulative sum and not by torch.unique, whose output size would have to be read from the device.
    group = torch.cat([ids.new_zeros(1), (ids[1:] != ids[:-1]).cumsum(0)])
    sums = torch.zeros_like(pool).index_add(0, group, pool[order])
    position = torch.searchsorted(ids, anchor_id.contiguous()).clamp(max=len(ids) - 1)
    # An anchor's id need not occur in the pool; the search then ends at another id.
    same_id = torch.where((ids[position] == anchor_id)[:, None], sums[group[position]], 0.0)
    return pool.sum(0) - same_id
