"""Work on a second stream of the GPU, beside what follows: small kernels leave room for others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial

import torch


@contextmanager
def beside(device: torch.device) -> Iterator[Callable[[], None]]:
    """What is queued inside runs beside what follows, up to the call of what it gives. On a CPU one comes after the other.

        with beside(device) as join:
            keys = key_network(x)
        queries = network(x)
        join()

    Tensors made inside may be used once joined. The second stream always waits for the first before it begins, so memory of
    one is not given to the other too early. Each first stream has a second of its own.
    """
    if device.type != "cuda":
        yield lambda: None
        return
    first = torch.cuda.current_stream(device)
    second = _second(device, first.cuda_stream)
    second.wait_stream(first)
    with torch.cuda.stream(second):
        yield partial(first.wait_stream, second)


@lru_cache(maxsize=64)
def _second(device: torch.device, first: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
