"""The number of texts in pages of a Parquet file that store the texts' lengths as differences.

Such a page (DELTA_LENGTH_BYTE_ARRAY or DELTA_BYTE_ARRAY) states the number of its texts twice: in its header, and at the start
of each list of lengths. pyarrow reserves memory for the second number, which a page of a few bytes may put at two billion.
"""

from __future__ import annotations

from io import BytesIO
from typing import BinaryIO

from contrapose.lab.memory_budget import check_allocation
from contrapose.lab.modalities.text.parquet_pages import Page, read_varint

_KIND, _HEADER, _HEADER_2 = 1, 5, 8  # fields of a page's header: its kind, and what follows for kind 0, and for kind 3
_VALUES = 1  # field of both: number of texts, including missing ones
_ENCODING, _MISSING = 2, 3  # fields of the first: encodings of the texts, and of the list of missing ones
_ENCODING_2, _LISTED_2, _COMPRESSED_2 = 4, (5, 6), 7  # of the second: also the sizes of its lists
_LENGTHS, _PREFIXES = 6, 7  # encodings: lengths and texts; lengths of prefixes, then lengths and texts of the rest
_RLE = 3  # encoding of the list of missing texts
_BYTES_PER_VALUE = 8  # that pyarrow reserves


def check_counts(file: BinaryIO, page: Page, *, compression: str, optional: bool, what: str) -> None:
    """Raise ValueError if a page has more lengths than texts, or so many that memory for them is beyond the budget.

    file          the file, opened for reading
    page          a page of a column of texts, whose size has been checked: it is unpacked here
    compression   of the page, as pyarrow names it
    optional      whether texts may be missing
    what          the page, for the message
    """
    second = page.header.get(_KIND) == 3  # in the second version of the format
    header = page.header.get(_HEADER_2 if second else _HEADER)
    fields = {key: value for key, value in header.items() if isinstance(value, int)} if isinstance(header, dict) else {}
    encoding = fields.get(_ENCODING_2 if second else _ENCODING)
    if encoding not in (_LENGTHS, _PREFIXES):
        return
    values = fields.get(_VALUES, -1)
    check_allocation(_BYTES_PER_VALUE * values, what)
    # In the second version, two lists precede the content, are not compressed, and have their sizes in the header.
    listed = sum(fields.get(field, 0) for field in _LISTED_2) if second else 0
    if not 0 <= listed <= min(page.size, page.stored) or (optional and not second and fields.get(_MISSING) != _RLE):
        raise ValueError("a page's list of missing texts is damaged")
    file.seek(page.start + listed)
    content = file.read(page.stored - listed)
    if content and compression != "UNCOMPRESSED" and not (second and fields.get(_COMPRESSED_2) == 0):
        content = _unpack(content, page.size - listed, compression)
    if optional and not second:
        content = content[4 + int.from_bytes(content[:4], "little") :]
    texts = BytesIO(content)
    for _ in range(1 if encoding == _LENGTHS else 2):
        _skip_lengths(texts, values)


def _unpack(content: bytes, size: int, compression: str) -> bytes:
    """Return a page's content of `size` bytes after unpacking."""
    import pyarrow as pa

    # pyarrow has one name for both kinds of LZ4, of which Parquet's newer one is without a frame.
    codec = {"LZ4": "lz4_raw"}.get(compression, compression.lower())
    return bytes(pa.decompress(content, decompressed_size=size, codec=codec, asbytes=True))


def _skip_lengths(texts: BinaryIO, values: int) -> None:
    """Read past a list of lengths; raise ValueError if it claims more of them than there are texts.

    The first length follows the list's header, and the others are in blocks of parts with a number of bits each.
    """
    if not texts.read(1):  # no text at all: all of them are missing
        return
    texts.seek(-1, 1)
    block, parts, count = (read_varint(texts) for _ in range(3))
    read_varint(texts)
    if count > values:
        raise ValueError(f"a page of {values:,} texts claims to have {count:,} lengths")
    if not 0 < parts <= block or block % parts:
        raise ValueError("a page's list of lengths is damaged")
    left = count - 1
    while left > 0:  # a list that ends too early is damaged, and read_varint says so
        read_varint(texts)
        for bits in texts.read(parts):
            if left > 0:
                texts.seek(bits * (block // parts) // 8, 1)
                left -= block // parts
