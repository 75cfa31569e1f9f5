"""Tars of images with captions or classes are read, or refused with a ValueError that names the tar, whatever a header claims."""

from __future__ import annotations

import io
import json
import os
import random
import struct
import tarfile
from contextlib import suppress
from pathlib import Path

import pytest
from captioned import png
from conftest import Promise
from fuzzing import COUNTS, Reader, check_reader, limited_memory, mutate, replace_anywhere, write_tar

from contrapose.lab.modalities.captions.files import open_captions
from contrapose.lab.modalities.images.decoding import Problem, attempt, decode
from contrapose.lab.modalities.images.image_shards import list_shards
from contrapose.lab.modalities.source import Split

BLOCK = tarfile.BLOCKSIZE
COLOURS = ("red", "green", "blue", "white")
# Regular, link, directory, sparse, long name, long link, two kinds of pax headers, unknown.
TYPES = (b"0", b"\0", b"1", b"2", b"5", b"S", b"L", b"K", b"x", b"g", b"?")
SIZES = (0, 1, 511, 513, 10**6, 2**20 + 1, 10**9, 10**12, 10**15, 2**62, 2**63, -1, -512, -(2**40))
PAX = (
    b"path=\xff\xfe",
    b"size=1e400",
    b"size=-1",
    b"GNU.sparse.major=1",
    b"GNU.sparse.map=1,",
    b"GNU.sparse.size=x",
    b"hdrcharset=BINARY",
    b"",
)


def captions(folder: Path) -> list[bytes]:
    """Return tars with .json and .txt, and with names so long that they need a header of their own."""
    described = [(f"{c}.json", json.dumps({"caption": [f"a {c} wall"], "split": "train"}).encode()) for c in COLOURS]
    images = [(f"{c}.png", png(c)) for c in COLOURS]
    texts = [(f"{'long' * 40}{c}.{e}", png(c) if e == "png" else b"a wall") for c in COLOURS for e in ("png", "txt")]
    return [write_tar(images + described), write_tar(texts), write_tar(texts, tarfile.GNU_FORMAT)]


def classes(folder: Path) -> list[bytes]:
    members = [
        (f"{c}.{e}", png(c) if e == "png" else str(n % 2).encode())
        for n, c in enumerate(COLOURS)
        for e in ("png", "cls")
    ]
    return [write_tar(members), write_tar([member for member in members if member[0].endswith("png")])]


def headers(content: bytes) -> list[int]:
    """Return the positions of the headers."""
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        return [info.offset for info in tar]


def as_field(size: int) -> bytes:
    """Return a size as in a header: octal, or base 256 for one that octal digits cannot express."""
    return (
        b"%011o\0" % size
        if 0 <= size < 8**11
        else struct.pack(">Iq", 0x80000000 if size >= 0 else 0xFFFFFFFF, size if size < 2**63 else -1)
    )


def with_checksum(header: bytes) -> bytes:
    """Return a header that `tarfile` accepts."""
    return header[:148] + b"%06o\0 " % (sum(header[:148]) + sum(header[156:]) + 8 * 32) + header[156:]


def damage_tar(content: bytes, rng: random.Random) -> bytes:
    """Damage bytes, a header's size, type or name, or JSON; or put an extended header, or many, before a member."""
    at = rng.choice(headers(content))
    header = bytearray(content[at : at + BLOCK])
    match rng.randrange(7):
        case 0 | 1:
            return mutate(content, rng)
        case 2:
            header[124:136] = as_field(rng.choice(SIZES))
        case 3:
            header[156:157] = rng.choice(TYPES)
            header[124:136] = as_field(rng.choice(SIZES))
        case 4:
            header[: rng.randrange(1, 100)] = mutate(bytes(header[:100]), rng)[:100]
        case 5:
            pair = rng.choice(PAX)
            block = bytearray(header)
            block[156:157], block[124:136] = rng.choice((b"x", b"g", b"L", b"K")), as_field(rng.choice((BLOCK, *SIZES)))
            extended = with_checksum(bytes(block)) + (b"%d %s\n" % (len(pair) + 4, pair)).ljust(BLOCK, b"\0")
            return content[:at] + extended * rng.choice((1, 2, 3000)) + content[at:]
        case _:
            if b"{" in content:
                first, last = content.index(b"{"), content.index(b"}") + 1
                text = json.dumps(replace_anywhere(json.loads(content[first:last]), rng)).encode()
                return content[:first] + text[: last - first].ljust(last - first) + content[last:]
            return mutate(content, rng)
    return content[:at] + with_checksum(bytes(header[:BLOCK].ljust(BLOCK, b"\0"))) + content[at + BLOCK :]


def read_captions(path: Path) -> None:
    """Read the captions and images of a tar, with and without its broken samples."""
    with suppress(ValueError):
        open_captions(path, skip_broken=True)
    for image in open_captions(path).images:
        attempt(decode, image)


def read_classes(path: Path) -> None:
    def read(split: Split) -> None:
        for image in split.train.paths:
            problem = attempt(decode, image)
            assert not isinstance(problem, Problem) or "MemoryError" not in problem.why

    with suppress(ValueError):
        read(list_shards(path, hold_out=0.0, skip_broken=True))
    read(list_shards(path, hold_out=0.0))


READERS = {
    "tar of captions": Reader("captions.tar", captions, read_captions, damage_tar, named=True),
    "tar of classes": Reader("classes.tar", classes, read_classes, damage_tar, named=True),
}


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", READERS)
def test_damaged_tars_are_read_or_refused(name: str, count: int, tmp_path: Path, promise: Promise) -> None:
    check_reader(name, READERS[name], count, tmp_path, promise)


@pytest.mark.parametrize("kind", [b"0", b"L", b"x", b"S"])
@pytest.mark.parametrize("size", [10**9, 10**12, 10**15, 2**62])
@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("position", [0, -1])
def test_a_header_that_claims_too_much(
    name: str, size: int, kind: bytes, position: int, tmp_path: Path, promise: Promise
) -> None:
    """Nothing is allocated, and `data check` says what is wrong."""
    content = READERS[name].contents(tmp_path)[0]
    at = headers(content)[position]
    header = bytearray(content[at : at + BLOCK])
    header[124:136], header[156:157] = as_field(size), kind
    path = tmp_path / "hostile.tar"
    path.write_bytes(content[:at] + with_checksum(bytes(header)) + content[at + BLOCK :])
    with limited_memory(), pytest.raises(ValueError, match=r"hostile\.tar (cannot be read|is cut off or damaged)"):
        READERS[name].read(path)
    promise.case()


@pytest.mark.parametrize("kind", [b"0", b"S"])
@pytest.mark.parametrize("name", READERS)
def test_a_header_that_points_before_the_start(name: str, kind: bytes, tmp_path: Path, promise: Promise) -> None:
    content = READERS[name].contents(tmp_path)[0]
    header = bytearray(content[:BLOCK])
    header[124:136], header[156:157] = b"\xff" * 7 + b"\0" * 5, kind  # a negative number of bytes, in base 256
    path = tmp_path / "hostile.tar"
    path.write_bytes(with_checksum(bytes(header)) + content[BLOCK:])
    with pytest.raises(ValueError, match=r"hostile\.tar (cannot be read|is cut off or damaged)"):
        READERS[name].read(path)
    promise.case()


@pytest.mark.parametrize("place", ["a tar", "a file"])
def test_an_image_of_gigabytes_is_not_read(place: str, tmp_path: Path, promise: Promise) -> None:
    """Files with holes take no space on the disk."""
    content, size = write_tar([("a.png", b"x"), ("a.txt", b"a wall")]), 3 * 2**30
    path = tmp_path / "x.tar"
    header = bytearray(content[:BLOCK])
    header[124:136] = as_field(size)
    if place == "a file":
        path = tmp_path / "x.png"
        path.touch()
        os.truncate(path, size)
        image = path
    else:
        path.write_bytes(with_checksum(bytes(header)))
        os.truncate(path, BLOCK + size)
        with path.open("ab") as file:
            file.write(content[2 * BLOCK :])
        (member,) = open_captions(path).images
        image = member  # type: ignore[assignment]
    with limited_memory():
        problem = attempt(decode, image)
    assert isinstance(problem, Problem)
    assert (
        problem.why
        == "its 3,221,225,472 bytes are more than an image of 100 megapixels has (the setting max_megapixels)"
    )
    promise.case()
