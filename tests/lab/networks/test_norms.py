from __future__ import annotations

import pytest
import torch
from torch import nn

from contrapose.lab.networks.norms import SplitBatchNorm, estimate_statistics, split_norms


@pytest.mark.parametrize("splits", [1, 2])
def test_estimated_statistics_are_means_over_batches(splits: int) -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.BatchNorm1d(4))
    if splits > 1:
        split_norms(network, splits)
    batches = [5 * torch.randn(8, 3) + 2 for _ in range(5)]
    estimate_statistics(network, iter(batches))
    with torch.no_grad():
        parts = torch.stack([network[0](batch)[part::splits] for batch in batches for part in range(splits)])
    norm = network[1]
    assert isinstance(norm, SplitBatchNorm if splits > 1 else nn.BatchNorm1d)
    torch.testing.assert_close(norm.running_mean, parts.mean((0, 1)))
    torch.testing.assert_close(norm.running_var, parts.var(1).mean(0))
    assert norm.momentum == 0.1
    assert not network.training
    # A second estimate starts over.
    estimate_statistics(network, batches[:1])
    torch.testing.assert_close(norm.running_mean, parts[:splits].mean((0, 1)))
