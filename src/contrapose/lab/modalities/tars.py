"""List the members of tar files. Nothing is extracted, so a member's name never becomes a path on disk."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from contrapose.lab.modalities.stored_files import ShardMember

# Errors that `tarfile` raises for damaged headers: its own, errors from failed conversions to numbers and text, one for a
# thousand headers that each extend the next one, and one for a sparse file whose list of pieces is cut off.
DAMAGES = (tarfile.TarError, ValueError, OverflowError, EOFError, RecursionError, IndexError)
_LONGEST_HEADER = 2**20  # bytes of a name or of attributes; real ones have hundreds


@dataclass(frozen=True)
class TarListing:
    """The complete files in a tar, and the reason why others may be missing."""

    members: tuple[ShardMember, ...]
    problem: str  # a predicate for a message, such as "is cut off after a.jpg"; empty if the tar is complete


class _HeaderReader(io.BufferedReader):
    """A tar of which only headers are read, and no more than a header needs: `tarfile` believes the size that one claims."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path))
        self._end = os.path.getsize(path)

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= _LONGEST_HEADER:
            raise tarfile.ReadError(f"a header claims {size} bytes for a name or attributes")
        return super().read(size)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        # The system refuses both without the file's name, the second one only if it is far enough.
        if offset < 0 and whence == os.SEEK_SET:
            raise tarfile.ReadError("a header points before the start")
        if offset > self._end:
            raise tarfile.ReadError("it ends inside a member")
        return super().seek(offset, whence)


@contextmanager
def open_tar(path: Path) -> Iterator[tarfile.TarFile]:
    """Open an uncompressed tar to list its members; `DAMAGES` are the errors of a damaged one."""
    with _HeaderReader(path) as file, tarfile.open(fileobj=file, mode="r:") as tar:
        yield tar


def list_tar(path: Path) -> TarListing:
    """List the files in an uncompressed tar by reading only its headers."""
    members, size, problem = [], os.path.getsize(path), ""
    try:
        with open_tar(path) as tar:
            for info in _increasing(tar):
                # Sparse files are stored in pieces, and links have no content.
                if info.isreg() and not info.issparse() and info.offset_data + info.size <= size:
                    members.append(ShardMember(path, info.offset_data, info.size, printable(info.name)))
            problem = "" if _ends_at(path, tar.offset) else "is cut off or damaged"
    except DAMAGES as error:
        if not members:
            raise ValueError(f"data: {path} cannot be read as an uncompressed tar: {error}; {_advice(path)}") from None
        problem = "is cut off or damaged"
    last = f" after {members[-1].name}, its last complete file" if problem and members else ""
    return TarListing(tuple(members), problem + last)


def _increasing(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members; raise an error at a header that points back, which would be read again without end."""
    end = 0
    for info in tar:
        if info.offset < end or info.size < 0:
            raise tarfile.ReadError("a header has a negative size")
        end = info.offset_data
        yield info


def _ends_at(path: Path, offset: int) -> bool:
    """Return whether a tar has its end mark at an offset: a block of zeros."""
    # `tarfile` takes a damaged or missing header for the end of the tar, without an error.
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(tarfile.BLOCKSIZE) == bytes(tarfile.BLOCKSIZE)


def _advice(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(6)
    if start.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")):
        return "it is compressed: decompress it first, or unpack it"
    return "copy or download it again"


def printable(name: str) -> str:
    """Return a name with line ends, control characters and undecodable bytes escaped, for messages."""
    if name.isprintable():
        return name
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in name)
