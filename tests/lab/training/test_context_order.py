"""The order of samples in tars: a function of seed and epoch, every sample once, one tar after the other."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from contrapose.randomness import blocked_permutation


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.integers(1, 20), st.integers(0, 3))
def test_every_sample_once_in_windows_of_consecutive_blocks(blocks: list[int], window: int, epoch: int) -> None:
    numbers = torch.tensor(blocks)
    order = blocked_permutation(numbers, window, 7, epoch)
    assert sorted(order.tolist()) == list(range(len(blocks)))
    assert torch.equal(order, blocked_permutation(numbers, window, 7, epoch))
    # Without shuffling within windows, each block would be visited once: windows visit blocks in that order.
    visited = list(dict.fromkeys(numbers[blocked_permutation(numbers, 1, 7, epoch)].tolist()))
    sequence = [block for block in visited for _ in range(blocks.count(block))]
    for first in range(0, len(blocks), window):
        found = numbers[order[first : first + window]].tolist()
        assert sorted(found) == sorted(sequence[first : first + window])


def test_epochs_and_seeds_differ() -> None:
    blocks = torch.arange(100) // 10
    orders = {tuple(blocked_permutation(blocks, 20, seed, epoch).tolist()) for seed in (0, 1) for epoch in (0, 1)}
    assert len(orders) == 4
