"""Outputs of a network for a whole data set."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor


@torch.no_grad()
def features(network: Callable[[Tensor], Tensor], batches: Iterable[Tensor]) -> Tensor:
    """Return the network's output for all batches of evaluation inputs, (N, width) in float32.

    network   function of a batch that returns features (B, width)
    batches   evaluation inputs (B, …)
    """
    return torch.cat([network(batch).float() for batch in batches])
