"""Files that are computed from other files and kept: where they are, and when their content is believed.

A cached file is a .safetensors file. Its metadata has a fingerprint of everything that determines its content, and its last four
bytes, the tensor `checksum`, are the CRC-32 of all bytes before them. If either differs, the content is computed again.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import json
import math
import os
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from uuid import uuid4

import torch
from torch import Tensor

CHECKSUM = "checksum"  # name of the last tensor
_BYTES = {"I64": 8, "I32": 4, "F32": 4, "U8": 1}  # of an element
_NAMES = {torch.int64: "I64", torch.int32: "I32", torch.float32: "F32", torch.uint8: "U8"}
_BLOCK = 2**22  # bytes to read at a time
_CRC_BYTES = 4


class Entry(NamedTuple):
    """A tensor to write, whose content may be computed while it is written."""

    name: str
    dtype: str  # a key of `_BYTES`
    shape: tuple[int, ...]
    blocks: Iterable[bytes]


def entry(name: str, tensor: Tensor) -> Entry:
    """Return a tensor in memory as an entry."""
    values = tensor.detach().cpu().contiguous()
    return Entry(name, _NAMES[values.dtype], tuple(values.shape), [values.numpy().tobytes()])


def cache_folder() -> Path:
    """Return the user's folder of cached files: $CONTRAPOSE_CACHE, or else contrapose in $XDG_CACHE_HOME or ~/.cache."""
    chosen = os.environ.get("CONTRAPOSE_CACHE")
    if chosen:
        return Path(os.path.abspath(os.path.expanduser(chosen)))
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the XDG specification says to ignore relative paths
        # Without a home directory, "~" stays as it is, and must not become a folder of the working directory.
        base = os.path.join(os.sep, os.path.expanduser("~"), ".cache")
    return Path(base) / "contrapose"


def cache_path(kind: str, name: str, key: Any, ending: str = ".safetensors") -> Path:
    """Return the path of a file in the user's cache folder, in the subfolder `kind`.

    name   what a user may recognise, such as the name of a data set
    key    JSON that tells this file from others with the same name
    """
    digest = hashlib.blake2b(os.fsencode(json.dumps(key, sort_keys=True)), digest_size=8).hexdigest()
    # Names may be as long as a file system allows, and have bytes that are not UTF-8.
    readable = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)[:80]
    return cache_folder() / kind / f"{readable}-{digest}{ending}"


def not_kept(path: Path, error: OSError) -> str:
    """Return a line about a file that could not be written to the user's cache folder."""
    return f"cache: {path} cannot be written ({error.strerror}) and is not kept; set CONTRAPOSE_CACHE to use another folder"


@dataclass(frozen=True)
class CachedFile:
    """A file of computed tensors.

    path          where it is; its folder is created when it is written
    fingerprint   a checksum of everything that determines the content
    log           receives a line if there is a file that is not used
    """

    path: Path
    fingerprint: str
    log: Callable[[str], None]

    def read(self) -> dict[str, Tensor] | None:
        """Return the memory-mapped tensors; None if there is no file, or if it is damaged or was computed from other data."""
        problem = "is damaged, or was written by an earlier version"
        try:
            if is_intact(self.path):
                metadata, tensors = open_tensors(self.path)
                if metadata.get("fingerprint") == self.fingerprint:
                    return tensors
                problem = "was computed from other data or settings"
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError:  # damaged, with a checksum of what is there
            pass
        except OSError as error:
            problem = f"cannot be read ({error.strerror})"
        self.log(f"cache: {self.path} {problem}; it is computed again")
        return None

    def write(self, *entries: Entry) -> None:
        """Write the file; raise OSError if that is impossible."""
        write_tensors(self.path, entries, {"fingerprint": self.fingerprint})


def open_tensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the metadata and the memory-mapped tensors of a .safetensors file.

    Raise ValueError if the header is damaged, or if the file does not have the size that the header states.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            names = [name for name in file.keys() if name != CHECKSUM]  # noqa: SIM118
            return file.metadata() or {}, {name: file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise ValueError(f"it is damaged: {error}") from error


def is_intact(path: Path, advance: Callable[[], None] = lambda: None) -> bool:
    """Return whether a file ends with the checksum of all bytes before it; `advance` is called after each of `block_count`."""
    remaining, checksum = path.stat().st_size - _CRC_BYTES, 0
    with path.open("rb") as file:
        while remaining > 0 and (block := file.read(min(_BLOCK, remaining))):
            checksum = zlib.crc32(block, checksum)
            remaining -= len(block)
            advance()
        return file.read() == checksum.to_bytes(_CRC_BYTES, "little")


def block_count(path: Path) -> int:
    """Return in how many blocks `is_intact` reads a file."""
    return -(-path.stat().st_size // _BLOCK)


def write_tensors(path: Path, entries: Sequence[Entry], metadata: Mapping[str, str]) -> None:
    """Write a .safetensors file with a checksum. It gets its name when it is complete and on disk.

    safetensors itself would need all tensors in memory, and its errors do not say that a disk is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path)
    part = path.with_name(f".{path.name}.{uuid4().hex}.part")
    try:
        with part.open("wb") as file:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
            # Large elements first: their bytes must be aligned.
            _write(file, sorted(entries, key=lambda one: -_BYTES[one.dtype]), metadata)
            file.flush()
            os.fsync(file.fileno())  # otherwise a crash of the machine may leave zeros under the final name
            os.replace(part, path)
    finally:
        with suppress(OSError):
            part.unlink()


def _write(file: BinaryIO, entries: Sequence[Entry], metadata: Mapping[str, str]) -> None:
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for one in [*entries, Entry(CHECKSUM, "U8", (_CRC_BYTES,), ())]:
        size = math.prod(one.shape) * _BYTES[one.dtype]
        header[one.name] = {"dtype": one.dtype, "shape": one.shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    checksum = 0
    for block in ([len(text).to_bytes(8, "little") + text], *(one.blocks for one in entries)):
        for content in block:
            checksum = zlib.crc32(content, checksum)
            file.write(content)
    file.write(checksum.to_bytes(_CRC_BYTES, "little"))


def _remove_abandoned(path: Path) -> None:
    """Remove the unfinished files of processes that were killed while they wrote this file."""
    for part in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        with suppress(OSError), part.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused while a process is writing it
            part.unlink()
