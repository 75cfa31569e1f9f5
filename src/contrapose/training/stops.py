"""Why a training ends before its last step."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Stopped(Exception):
    """A signal asked the training to stop; its state is saved."""


class Diverged(Exception):
    """A loss or gradient was not finite; the weights are those of the step before."""


@contextmanager
def signals() -> Iterator[list[int]]:
    """SIGTERM and SIGINT fill the list instead of ending the process: the step is finished and saved first."""
    asked: list[int] = []
    try:
        old = {s: signal.signal(s, lambda number, frame: asked.append(number)) for s in (signal.SIGTERM, signal.SIGINT)}
    except ValueError:  # not the main thread
        yield asked
        return
    try:
        yield asked
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
