"""Which rows are the positives of an anchor: the same sample in other views."""

from __future__ import annotations

import torch
from torch import Tensor

from contrapose.pairs.layout import Layout


def other_views_of(z: Tensor) -> Tensor:
    """Map (V, m, d) to (V · m, V - 1, d): for each row, the same sample's rows in the following views, cyclically."""
    if len(z) == 1:
        return z.new_empty((z.shape[1], 0, z.shape[2]))
    return torch.stack([z.roll(-step, 0) for step in range(1, len(z))], dim=2).flatten(0, 1)


def keys_of_others(keys: Tensor, views: int) -> Tensor:
    """Map (W, m, d) to (views · m, k, d): for each row of `views` views, the same sample's keys from the other views.

    With keys of two global crops and more than two views, a local crop has both keys as positives. A global crop has one
    positive, which is repeated so that all anchors have two. The repetition changes neither a mean over positives nor a
    softmax-weighted mean; an objective that sums over positives must leave out `repeated_positives`.
    """
    others = other_views_of(keys)
    if len(keys) == views:
        return others
    return torch.cat([others.expand(-1, 2, -1), keys.transpose(0, 1).repeat(views - 2, 1, 1)])


def repeated_positives(pairs: Layout, device: torch.device) -> Tensor | None:
    """Return which positives are repetitions, (n, 2) bool; None if there are none."""
    if not pairs.global_views:
        return None
    n = pairs.shape[0]
    is_global = torch.arange(n, device=device) < n // pairs.view_count * pairs.global_views
    return is_global[:, None] & (torch.arange(2, device=device) > 0)
