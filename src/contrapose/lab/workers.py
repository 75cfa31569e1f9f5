"""Start of data-loading workers, and the error for a worker that fails."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from contrapose.child_processes import STOP_SIGNALS, exit_with_parent

TIMEOUT = 300.0  # seconds without a batch after which data-loading workers are considered dead


def default_workers() -> int:
    """Return one worker per core that this process may use, shared with the other processes of the run on this machine.

    With a single core, a worker would only take time from training, so there is none.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    own = cores // local_processes()
    return own if own > 1 else 0


def local_processes() -> int:
    """Return the number of the run's processes on this machine, which share its cores and its memory."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def start_loading(worker: int) -> None:
    """Set up a data-loading worker: it exits with the training process, and only the training process handles signals."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    exit_with_parent()


class LoadingFailed(Exception):
    """A data-loading worker was killed, often because memory ran out, or stopped responding."""


@contextmanager
def worker_failures() -> Iterator[None]:
    """Turn the death of a data-loading worker in this block into `LoadingFailed`; torch can raise its error at any point."""
    try:
        yield
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        reason = str(error).splitlines()[0]
        raise LoadingFailed(
            f"a data-loading worker died ({reason}); run the same command again to resume from the last checkpoint"
        ) from error
