"""JPEG files that a plain decoder reads as an image viewer shows them, found by their header."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

_FRAMES = (0xC0, 0xC1, 0xC2)  # baseline, extended and progressive
_OTHER_FRAMES = frozenset(range(0xC3, 0xD0)) - {0xC4, 0xC8, 0xCC}  # lossless, hierarchical or arithmetic
_WITHOUT_LENGTH = frozenset({0x01, *range(0xD0, 0xD8)})
_EXIF, _APP1, _ADOBE, _SCAN = b"Exif\0\0", 0xE1, 0xEE, 0xDA
_ORIENTATION = 0x0112  # a tag of EXIF


class JpegHeader(NamedTuple):
    """What a decoder needs to know about a JPEG file."""

    height: int
    width: int
    orientation: int  # from 1 to 8, as in EXIF: how `upright` turns the pixels


def read_header(content: bytes) -> JpegHeader | None:
    """Return the header of a complete JPEG file with 8-bit gray or YCbCr pixels; None for all other files.

    The others are left to Pillow: they have other colours (CMYK, RGB), are cut off, are rotated in an unusual way, or are no JPEG
    files.
    """
    if content[:2] != b"\xff\xd8" or not content[-64:].rstrip(b"\0").endswith(b"\xff\xd9"):
        return None
    try:
        return _read_segments(content)
    except IndexError:  # a segment claims to be longer than the file
        return None


def _read_segments(content: bytes) -> JpegHeader | None:
    place, orientation, shape = 2, 1, None
    while content[place] == 0xFF:
        marker = content[place + 1]
        if marker == 0xFF or marker in _WITHOUT_LENGTH:
            place += 1 if marker == 0xFF else 2
            continue
        if marker == _SCAN:
            return None if shape is None else JpegHeader(*shape, orientation)
        length = int.from_bytes(content[place + 2 : place + 4], "big")
        segment = content[place + 4 : place + 2 + length]
        if marker in _OTHER_FRAMES or (marker == _ADOBE and segment[:5] == b"Adobe" and segment[11] != 1):
            return None
        if marker in _FRAMES:
            components = segment[6::3][: segment[5]]
            if segment[0] != 8 or len(components) not in (1, 3) or components == b"RGB":
                return None
            shape = int.from_bytes(segment[1:3], "big"), int.from_bytes(segment[3:5], "big")
            if not all(shape):
                return None
        elif marker == _APP1 and segment.startswith(_EXIF):
            orientation = _exif_orientation(segment[len(_EXIF) :])
            if not orientation:
                return None
        elif marker == _APP1 and b"Orientation" in segment:  # in XMP, which Pillow reads too
            return None
        place += 2 + length
    return None


def _exif_orientation(tiff: bytes) -> int:
    """Return the orientation in EXIF data, 1 if it has none; 0 if it cannot be read."""
    order = {b"II*\0": "little", b"MM\0*": "big"}.get(tiff[:4])
    if order is None:
        return 0

    def number(start: int, length: int) -> int:
        if start + length > len(tiff):
            raise IndexError(start)
        return int.from_bytes(tiff[start : start + length], order)  # type: ignore[arg-type]

    first = number(4, 4)
    for entry in range(first + 2, first + 2 + 12 * number(first, 2), 12):
        if number(entry, 2) == _ORIENTATION:
            found = number(entry + 8, 2)
            return found if number(entry + 2, 2) == 3 and 1 <= found <= 8 else 0  # type 3: 16 bits
    return 1


def upright(image: Tensor, orientation: int) -> Tensor:
    """Turn an image (3, H, W) as its EXIF orientation says; the result is contiguous."""
    if orientation >= 5:
        image = image.transpose(1, 2)
    mirrored = {2: (2,), 3: (1, 2), 4: (1,), 6: (2,), 7: (1, 2), 8: (1,)}.get(orientation)
    return (image if mirrored is None else image.flip(mirrored)).contiguous()
