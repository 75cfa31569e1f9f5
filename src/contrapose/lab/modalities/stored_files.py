"""Files on disk, and files inside larger ones, called shards, read in place: members of tars, samples of LitData's chunks."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, runtime_checkable


def check_regular(path: Path) -> int:
    """Return the size of a file; refuse what is not a regular file, because opening a named pipe would block forever."""
    try:
        status = path.stat()
    except FileNotFoundError:  # the system's message would repeat the path
        is_link = path.is_symlink()
        raise ValueError("it is a link to a file that does not exist" if is_link else "it does not exist") from None
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not a regular file")
    return status.st_size


@runtime_checkable
class StoredFile(Protocol):
    """A file that has no path on disk, such as `ShardMember`."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def parent(self) -> Path:
        """The folder or shard that contains the file."""

    def read(self) -> bytes:
        """Return the content."""


@dataclass(frozen=True, slots=True)
class ShardMember:
    """A file inside a larger one, such as a tar. Its content is read on demand, and the object is cheap to pickle."""

    shard: Path
    offset: int  # position of its first byte in the shard
    size: int
    name: str  # name for messages: characters that cannot be printed are escaped

    @property
    def parent(self) -> Path:
        """The shard, by analogy with `Path.parent`."""
        return self.shard

    def read(self) -> bytes:
        """Return the content."""
        with self.shard.open("rb") as file:
            return self.read_from(file)

    def read_from(self, file: BinaryIO) -> bytes:
        """Return the content from an open shard, so that reading many members opens it only once."""
        file.seek(self.offset)
        content = file.read(self.size)
        if len(content) < self.size:
            raise ValueError(f"{self.shard} has changed since it was listed: it ends inside {self.name}")
        return content

    def __str__(self) -> str:
        return f"{self.shard}/{self.name}"
