"""One process works in a run's directory. The lock beside it ends with its process, also when that is killed."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from contrapose.training.stops import StopRequests


@contextmanager
def locked(folder: Path, requests: StopRequests | None = None, *, patient: bool = False) -> Iterator[bool]:
    """Whether the directory is ours while this lasts; `patient`: once it is, unless a signal comes first."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as file:
        try:
            with requests.immediate() if requests is not None else nullcontext():
                fcntl.flock(file, fcntl.LOCK_EX | (0 if patient else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True
