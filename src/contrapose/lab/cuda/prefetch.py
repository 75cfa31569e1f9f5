"""Prepare batches ahead of their use, in other threads and on other CUDA streams."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
_THREADS = 2  # while one waits for the GPU, the other uses the host
_AHEAD = 3  # batches


def prepare_ahead(
    prepare: Callable[[T], list[Tensor]], items: Iterable[T], device: torch.device
) -> Generator[list[Tensor], None, None]:
    """Yield `prepare(item)` for each item, in order; while one is used, the next ones are prepared.

    The current stream waits for what `prepare` queued on the device. `items` are taken in this thread, ahead of their use. On a
    CPU, nothing is prepared ahead.
    """
    if device.type != "cuda":
        yield from map(prepare, items)
        return
    own = threading.local()  # each thread has a stream

    def run(item: T) -> tuple[list[Tensor], torch.cuda.Event]:
        if not hasattr(own, "stream"):
            own.stream = torch.cuda.Stream(device)
        with torch.cuda.stream(own.stream):
            tensors, ready = prepare(item), torch.cuda.Event()
            ready.record()
        return tensors, ready

    def use(future: Future[tuple[list[Tensor], torch.cuda.Event]]) -> list[Tensor]:
        tensors, ready = future.result()
        current = torch.cuda.current_stream(device)
        current.wait_event(ready)
        for tensor in tensors:
            tensor.record_stream(current)  # so that its memory is not reused on its own stream too early
        return tensors

    waiting: deque[Future[tuple[list[Tensor], torch.cuda.Event]]] = deque()
    threads = ThreadPoolExecutor(_THREADS)
    try:
        for item in items:
            waiting.append(threads.submit(run, item))
            if len(waiting) > _AHEAD:
                yield use(waiting.popleft())
        while waiting:
            yield use(waiting.popleft())
    finally:
        threads.shutdown(cancel_futures=True)


def copy_pinned(tensors: Iterable[Tensor], device: torch.device) -> list[Tensor]:
    """Copy tensors to the device through pinned memory, from which they are copied while a GPU computes."""
    if device.type != "cuda":
        return [tensor.to(device) for tensor in tensors]
    return [tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors]
