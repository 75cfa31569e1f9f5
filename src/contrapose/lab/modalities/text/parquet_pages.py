"""The sizes of the pages in a Parquet file, from the pages' own headers: the table of contents at its end may claim other sizes.

A header is a structure of Thrift's compact protocol. Its fields are numbered, and `_SIZE` and `_STORED` are always there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

Header = dict[int, "int | Header"]
_SIZE, _STORED = 2, 3  # fields of a header: bytes of the page unpacked, and in the file
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _STRUCT = 1, 2, 3, 7, 8, 12  # types of fields
_DEEPEST = 8  # structures inside structures; headers have two


@dataclass(frozen=True)
class Page:
    """A page: the fields of its header, and where its bytes are."""

    header: Header
    start: int  # position of its first byte after the header
    size: int  # bytes after unpacking
    stored: int  # bytes in the file


def read_pages(file: BinaryIO, chunk: Any) -> Iterator[Page]:
    """Yield the pages of a column chunk; raise ValueError if one is damaged.

    file    the file, opened for reading
    chunk   pyarrow's description of the column chunk
    """
    # As pyarrow reads it: a dictionary comes first, and an offset of 0 means that there is none.
    position = min(chunk.dictionary_page_offset or chunk.data_page_offset, chunk.data_page_offset)
    end = position + chunk.total_compressed_size
    while position < end:
        file.seek(position)
        header = _read_struct(file)
        size, stored = header.get(_SIZE), header.get(_STORED)
        if not (isinstance(size, int) and isinstance(stored, int) and size >= 0 and stored >= 0):
            raise ValueError(f"the page at byte {position:,} has no size")
        page = Page(header, file.tell(), size, stored)
        position = page.start + stored
        yield page


def _read_struct(file: BinaryIO, depth: int = 0) -> Header:
    """Return the integers, truth values and structures in a structure by field number, and skip all other fields."""
    if depth > _DEEPEST:
        raise ValueError("a page's header has too many structures inside each other")
    values: Header = {}
    number = 0
    while head := _byte(file):
        number = number + (head >> 4) if head >> 4 else _zigzag(file)
        value = _read_value(file, head & 15, depth)
        if value is not None:
            values[number] = value
    return values


def _read_value(file: BinaryIO, kind: int, depth: int) -> int | Header | None:
    """Return an integer, a truth value as 0 or 1, or a structure; read and drop a value of another type."""
    if kind in (_TRUE, _FALSE):
        return int(kind == _TRUE)
    if kind in (_BYTE, _DOUBLE):
        file.seek(1 if kind == _BYTE else 8, 1)
    elif kind < _DOUBLE:  # integers of 16, 32 and 64 bits
        return _zigzag(file)
    elif kind == _BINARY:
        file.seek(read_varint(file), 1)
    elif kind == _STRUCT:
        return _read_struct(file, depth + 1)
    else:  # lists, sets and maps, which no header has
        raise ValueError(f"a page's header has a field of type {kind}")
    return None


def _byte(file: BinaryIO) -> int:
    byte = file.read(1)
    if not byte:
        raise ValueError("it ends inside a page's header")
    return byte[0]


def read_varint(file: BinaryIO) -> int:
    """Return a number that is stored in groups of 7 bits, lowest first."""
    value = 0
    for shift in range(0, 70, 7):
        byte = _byte(file)
        value |= (byte & 127) << shift
        if byte < 128:
            return value
    raise ValueError("a page's header has a number of more than 64 bits")


def _zigzag(file: BinaryIO) -> int:
    value = read_varint(file)
    return (value >> 1) ^ -(value & 1)
