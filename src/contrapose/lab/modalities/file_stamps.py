"""A checksum of where files are, how large they are and when they changed, so that what was computed from them can be kept."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from contrapose.lab.modalities.stored_files import ShardMember, StoredFile


def stamp_files(files: Sequence[Path | StoredFile], *others: str) -> str:
    """Return a checksum of the paths, sizes and modification times of files, and of other texts."""
    size_and_time = cache(_size_and_time)  # many images may be in one tar or chunk
    digest = hashlib.blake2b("\0".join(others).encode(), digest_size=8)
    for file in files:
        if isinstance(file, ShardMember):
            place: Any = file.shard.absolute(), file.offset, file.size, size_and_time(file.shard)[1]
        elif isinstance(file, Path):
            place = file.absolute(), *_size_and_time(file)
        else:  # a picture in a built-in set, which never changes
            place = file
        digest.update(repr(place).encode())
    return digest.hexdigest()


def _size_and_time(path: Path) -> tuple[int, int]:
    """Return the size of a file and the time of its last change; zeros if it cannot be found, which reading it reports."""
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns
