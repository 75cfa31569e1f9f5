"""A second CUDA stream, for work that can overlap with the work after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial

import torch


@contextmanager
def side_stream(device: torch.device) -> Iterator[Callable[[], None]]:
    """Run the work queued in this block on a second CUDA stream until `join()` is called. On a CPU, the work runs in order.

        with side_stream(device) as join:
            keys = key_network(x)
        queries = network(x)
        join()

    Tensors made in the block may be used after `join()`. The second stream waits for the current stream before it starts, so
    the allocator never reuses memory in one stream while the other stream still needs it. Each stream has its own second stream.
    """
    if device.type != "cuda":
        yield lambda: None
        return
    current = torch.cuda.current_stream(device)
    second = _second_stream(device, current.cuda_stream)
    second.wait_stream(current)
    with torch.cuda.stream(second):
        yield partial(current.wait_stream, second)


@lru_cache(maxsize=64)
def _second_stream(device: torch.device, current: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
