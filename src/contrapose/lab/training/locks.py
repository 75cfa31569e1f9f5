"""Locks that give one process exclusive use of a run's directory. The OS releases a lock when its process ends or is killed."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from contrapose.lab.training.stops import StopRequests


@contextmanager
def lock_directory(folder: Path, requests: StopRequests | None = None, *, wait: bool = False) -> Iterator[bool]:
    """Hold a directory's lock within this block; yield False if another process holds the lock.

    With `wait`, wait until the lock is free, unless `requests` receives a signal first.
    """
    path = _lock_path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            # A signal must raise an exception while flock blocks, because signals are otherwise checked only between steps.
            with requests.immediate() if requests is not None else nullcontext():
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


def is_locked(folder: Path) -> bool:
    """Return whether another process holds the lock of a directory, such as the process that trains the run in it."""
    try:
        with _lock_path(folder).open() as file:
            # A shared lock, released at once, is refused only while another process holds the lock.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is no lock file, or it cannot be read
        return False
    return False


def _lock_path(folder: Path) -> Path:
    """Return the lock file, which is next to the directory, so that a run with invalid settings leaves no directory behind."""
    folder = Path(os.path.realpath(folder))  # the same lock for every link or relative path to the directory
    return folder.parent / f".{folder.name}.lock"
