"""Tab-separated files with a header and without quoting: .tsv, .tsv.gz or .tsv.xz."""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from contrapose.lab.modalities.text.lines import LONGEST

_OPENERS: Mapping[str, Callable[..., IO[Any]]] = {".gz": gzip.open, ".xz": lzma.open}


def read_table(path: Path, columns: Sequence[str], *, option: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each row's location, "FILE, line N", for messages, and its fields; errors start with the name of the `option`.

    A quotation mark is an ordinary character: sentences contain unpaired quotation marks.
    """
    if not path.is_file():
        problem = "is a folder" if path.is_dir() else "does not exist"
        raise ValueError(f"{option}: {path} {problem}; expected a .tsv, .tsv.gz or .tsv.xz file")
    number = 0
    try:
        # Only \n ends a line: other characters that Python counts as line ends may occur in a sentence.
        with _OPENERS.get(path.suffix, open)(path, "rt", encoding="utf-8", newline="\n") as file:
            for number, line in enumerate(iter(lambda: file.readline(LONGEST + 1), ""), start=1):
                if len(line) > LONGEST and not line.endswith("\n"):
                    raise ValueError(f"{option}: {path}, line {number} has more than {LONGEST:,} characters")
                fields = line.rstrip("\r\n").split("\t")
                if number == 1:
                    _check_header(path, columns, fields, option)
                    continue
                place = f"{path}, line {number}"
                if len(fields) != len(columns):
                    raise ValueError(
                        f"{option}: {place}: expected {len(columns)} fields with tabs between them, got {len(fields)}"
                    )
                yield place, fields
    except UnicodeDecodeError as error:
        raise ValueError(f"{option}: {path}: expected UTF-8 text, got other bytes after line {number}") from error
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise ValueError(f"{option}: {path} is damaged or not a {path.suffix} file, after line {number}") from error
    if number < 2:
        raise ValueError(f"{option}: {path} has no rows; expected the columns {', '.join(columns)}")


def _check_header(path: Path, columns: Sequence[str], fields: list[str], option: str) -> None:
    if fields != list(columns):
        received = ", ".join(fields)
        received = received if len(received) <= 80 else f"{received[:80]}…"
        raise ValueError(
            f"{option}: {path}, line 1: expected the columns {', '.join(columns)} with tabs between them, got {received!r}"
        )
