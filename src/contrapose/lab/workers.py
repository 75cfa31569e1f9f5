"""Data-loading workers: their start, and what their failure means."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from contrapose.child_processes import STOP_SIGNALS, exit_with_parent

TIMEOUT = 300.0  # seconds without a batch from data-loading workers after which they are given up


def start_loading(worker: int) -> None:
    """Set up a data-loading worker: it ends with the training, and signals are the training's to handle."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    exit_with_parent()


class LoadingFailed(Exception):
    """A data-loading worker was killed, often for want of memory, or stopped answering."""


@contextmanager
def worker_failures() -> Iterator[None]:
    """In this block a dead data-loading worker raises `LoadingFailed`; torch's own error comes wherever the program is."""
    try:
        yield
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        reason = str(error).splitlines()[0]
        raise LoadingFailed(
            f"a data-loading worker died ({reason}); run the same command again to resume from the last checkpoint"
        ) from error
