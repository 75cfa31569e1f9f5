"""Locks that keep a run's directory to one process. The kernel releases a lock when its process ends, even if it is killed."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from contrapose.lab.training.stops import StopRequests


@contextmanager
def lock_directory(folder: Path, requests: StopRequests | None = None, *, wait: bool = False) -> Iterator[bool]:
    """Hold the lock of a directory in this block; yield False if another process has it.

    With `wait` the block starts when the lock is free, unless `requests` receives a signal first.
    """
    folder = Path(os.path.realpath(folder))  # one lock, whichever link or relative path leads to the directory
    folder.parent.mkdir(parents=True, exist_ok=True)
    # The lock file lies beside the directory, so that a refused setting leaves no directory behind.
    with (folder.parent / f".{folder.name}.lock").open("w") as file:
        try:
            # A signal must raise while flock blocks, because signals are otherwise checked only between steps.
            with requests.immediate() if requests is not None else nullcontext():
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True
