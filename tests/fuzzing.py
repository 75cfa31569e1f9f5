"""Random damage to files, with a fixed seed, and the check that a reader reads what is left or refuses it by name."""

from __future__ import annotations

import io
import json
import random
import resource
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import Promise

SECONDS = 20.0  # of one case, which takes milliseconds; a busy machine is slow
MEMORY = 2**31  # bytes of addresses that a case may ask for: what a file claims must not fill the machine
# `make test` tries some cases of each reader, `make promises` thousands.
COUNTS = [60, pytest.param(5000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
# Where parsers make mistakes: ends of strings, nesting, numbers that are too large, text that is no UTF-8.
TOKENS = (
    b"", b"\0", b'"', b"'", b"\\", b"\n", b"\t", b",", b":", b"{", b"}", b"[" * 40, b"(" * 40, b"null", b"true", b"NaN", b"-1", b"0",
    b"1e999", b"-Infinity", b"9" * 30, b"0x10", b"\xff\xfe", b"\xed\xa0\x80", "٣\u202e".encode(), b"../..", b"lambda: 0", b"x" * 300,
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**70,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    "\ud800",
    [],
    [[]],
    {},
    [None],
)


def mutate(content: bytes, rng: random.Random) -> bytes:
    """Return the content with one to three changes: a flipped bit, a cut, a token, a part that is repeated or missing."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 3)):
        # Half of the changes are near the start, where binary files have their header.
        at = rng.randrange(min(len(changed), 300) + 1) if rng.random() < 0.5 else rng.randrange(len(changed) + 1)
        end = min(len(changed), at + rng.choice((1, 4, 30)))
        match rng.randrange(5):
            case 0 if at < len(changed):
                changed[at] ^= 1 << rng.randrange(8)
            case 1:
                del changed[at:]
            case 2:
                changed[at:at] = changed[at:end]
            case 3:
                del changed[at:end]
            case _:
                changed[at:end] = rng.choice(TOKENS)
    return bytes(changed)


def replace_value(content: bytes, rng: random.Random) -> bytes:
    """Return a JSON object with one value that is of another type, or missing, or whose key is unknown."""
    description = json.loads(content)
    key = rng.choice([*description, "unknown"])
    description[key] = rng.choice(VALUES)
    if rng.random() < 0.1:
        del description[key]
    return json.dumps(description).encode()


def replace_anywhere(value: Any, rng: random.Random) -> Any:
    """Return a JSON value with one value, at a random depth, that is of another type, or missing."""
    if not isinstance(value, dict | list) or not value or rng.random() < 0.1:
        return rng.choice(VALUES)
    changed: Any = value.copy()
    key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
    if rng.random() < 0.1:
        del changed[key]
    else:
        changed[key] = replace_anywhere(value[key], rng)
    return changed


@dataclass(frozen=True)
class Reader:
    """A file's name, what a valid one may contain, the function that reads it, and how its content is damaged."""

    name: str
    contents: Callable[[Path], list[bytes]]
    read: Callable[[Path], object]
    damage: Callable[[bytes, random.Random], bytes] = mutate
    named: bool = False  # whether every message must have the path of the file


def write_tar(members: list[tuple[str, bytes]], form: int = tarfile.PAX_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


@contextmanager
def limited_memory() -> Iterator[None]:
    """Raise MemoryError for an allocation beyond `MEMORY`, which the system might grant and kill for later."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    if pages:
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def check_reader(name: str, reader: Reader, count: int, folder: Path, promise: Promise) -> None:
    """Read valid files, and `count` damaged ones; fail if anything but a ValueError is raised, or if a case takes long."""
    rng, findings = random.Random(name), list[str]()
    contents, path = reader.contents(folder), folder / reader.name
    for number, content in enumerate(contents + [reader.damage(rng.choice(contents), rng) for _ in range(count)]):
        path.write_bytes(content)
        start = time.perf_counter()
        try:
            with limited_memory():
                reader.read(path)
        except ValueError as error:
            if number < len(contents):
                findings.append(f"the undamaged file is refused: {error}")
            elif reader.named and str(folder) not in str(error):
                findings.append(f"the file is not named: {error!r} of {content[:400]!r}")
        except Exception as error:  # that is a finding
            findings.append(f"{error!r} of {content[:400]!r}")
        promise.case(time.perf_counter() - start)
    assert not findings, f"{len(findings)} findings in {promise.cases} cases, such as {findings[0]}"
    assert promise.worst < SECONDS
