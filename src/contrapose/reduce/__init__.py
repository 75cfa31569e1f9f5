"""Row reductions over a similarity matrix that is not kept.

Every objective is plain autograd on a few numbers per anchor: statistics of its similarities to its negatives.
Small matrices are reduced in one block (`dense`); large ones a few rows at a time, with each block computed
again in the backward pass (`chunked`), so that memory grows with the number of embeddings and not with its square.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from contrapose.reduce.block import Block, Source
from contrapose.reduce.logit import Divided, Logit, Scale
from contrapose.reduce.statistics import Count, Expectation, LogSumExp, Maximum, Mean, Statistic

__all__ = [
    "Block",
    "Count",
    "Divided",
    "Expectation",
    "LogSumExp",
    "Logit",
    "Maximum",
    "Mean",
    "Scale",
    "Source",
    "Statistic",
    "block_entries",
    "reduce_rows",
]

# Entries of one block: 16 MiB in float32. Smaller blocks stay in cache, larger ones launch less.
_BLOCK_ENTRIES: ContextVar[int] = ContextVar("block_entries", default=2**22)


@contextmanager
def block_entries(count: int) -> Iterator[None]:
    """Inside, a block of the similarity matrix holds at most `count` entries (but at least one row)."""
    token = _BLOCK_ENTRIES.set(count)
    try:
        yield
    finally:
        _BLOCK_ENTRIES.reset(token)


def reduce_rows(source: Source, *statistics: Statistic) -> tuple[Tensor, ...]:
    """Each statistic of each anchor's negatives, (n,) tensors that carry gradients."""
    anchors, candidates = source.shape
    step = max(1, _BLOCK_ENTRIES.get() // max(1, candidates))

    def reduce_block(rows: slice) -> tuple[Tensor, ...]:
        block = source.block(rows)
        return tuple(statistic(block) for statistic in statistics)

    if step >= anchors:
        return reduce_block(slice(0, anchors))
    blocks = [slice(start, min(start + step, anchors)) for start in range(0, anchors, step)]
    # preserve_rng_state=False: nothing here is random, and saving the state would wait for the device.
    parts = [checkpoint(reduce_block, rows, use_reentrant=False, preserve_rng_state=False) for rows in blocks]
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))
