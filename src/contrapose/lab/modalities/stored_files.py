"""Files that are stored inside larger ones, called shards, and read in place: members of tars, samples of LitData's chunks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, runtime_checkable


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
