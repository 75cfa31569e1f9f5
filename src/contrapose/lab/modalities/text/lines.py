"""Lines from UTF-8 text files, compressed or not, read in constant memory."""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

LONGEST = 100_000  # characters per line; a longer line is unlikely to be a sentence
# A character takes at most 4 bytes in UTF-8, and a line end two.
_LONGEST_BYTES = 4 * LONGEST + 2
COMPRESSIONS: Mapping[str, Callable[..., IO[Any]]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
_DAMAGES = (EOFError, OSError, zlib.error, lzma.LZMAError)  # bz2 raises OSError


@dataclass(frozen=True)
class BadLine:
    """The reason why a line or row cannot be used, as a predicate for a message: "is empty"."""

    reason: str


EMPTY = BadLine("is empty")
TOO_LONG = BadLine(f"has more than {LONGEST:,} characters")


def read_lines(path: Path) -> Iterator[tuple[int, str | BadLine]]:
    """Yield each line's number and text, without the line end; empty lines at the end of the file are left out."""
    empty = 0  # number of empty lines just before this line
    for number, raw in enumerate(_read_raw_lines(path), start=1):
        line = _decode(raw, path, number)
        if isinstance(line, str) and not line.strip():
            empty += 1
            continue
        yield from ((earlier, EMPTY) for earlier in range(number - empty, number))
        empty = 0
        yield number, line


def _read_raw_lines(path: Path) -> Iterator[bytes]:
    """Yield the bytes of each line; only the first bytes of a line that is too long."""
    number = 0
    try:
        with COMPRESSIONS.get(path.suffix.lower(), open)(path, "rb") as file:
            # Only \n ends a line: other characters that Python counts as line ends may occur in a sentence.
            while raw := file.readline(_LONGEST_BYTES):
                rest = raw
                while len(rest) == _LONGEST_BYTES and not rest.endswith(b"\n"):
                    rest = file.readline(_LONGEST_BYTES)
                number += 1
                yield raw
    except PermissionError:
        raise
    except _DAMAGES as error:
        after = f" after line {number:,}" if number else ""
        raise ValueError(
            f"data: {path} cannot be read{after}: {error}; the file may be incomplete or damaged: copy or download it again"
        ) from error


def _decode(raw: bytes, path: Path, number: int) -> str | BadLine:
    if number == 1:
        if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise ValueError(
                f"data: {path} is UTF-16 text, expected UTF-8; convert it with: iconv -f utf-16 -t utf-8 {path.name} > NEW"
            )
        raw = raw.removeprefix(codecs.BOM_UTF8)
    if b"\0" in raw:
        raise ValueError(f"data: {path}, line {number:,} has a NUL byte: this is not a text file; expected UTF-8 text")
    if len(raw) == _LONGEST_BYTES and not raw.endswith(b"\n"):
        return TOO_LONG
    try:
        line = raw.removesuffix(b"\n").removesuffix(b"\r").decode()
    except UnicodeDecodeError as error:
        return BadLine(
            f"is not UTF-8: byte {error.start + 1} is 0x{raw[error.start]:02x} "
            f"(convert the file with: iconv -f latin1 -t utf-8 {path.name} > NEW)"
        )
    return TOO_LONG if len(line) > LONGEST else line
