"""Rows of a file, with values by column name, for texts and captions alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contrapose.lab.modalities.text.lines import BadLine
from contrapose.lab.modalities.text.records import FORMATS, Record, format_of

MOST_COUNTED = 1000  # unusable rows, for the message about the first one: a file of kilobytes may have millions


@dataclass(frozen=True)
class Table:
    """A file that stays on disk; created by `open_table`."""

    path: Path
    format: str  # a key of `FORMATS`
    first: Record  # the first readable record, which determines the columns
    header: bool  # whether the first record contains the column names

    @property
    def named(self) -> bool:
        """Whether the columns have names."""
        return self.header or isinstance(self.first, dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns; numbers from 1 on if the columns have no names."""
        if self.format == ".txt":
            return ("text",)
        return tuple(map(str, self.first if self.named else range(1, len(self.first) + 1)))

    def rows(self) -> Iterator[tuple[int, dict[str, Any] | BadLine]]:
        """Yield each row's number, and its values by column name or the reason why the row cannot be used."""
        names, names_follow = self.names, self.header
        for number, record in FORMATS[self.format](self.path):
            if isinstance(record, BadLine | dict):
                yield number, record
            elif names_follow:
                names_follow = False
            elif len(record) == len(names):
                yield number, dict(zip(names, record, strict=True))
            else:
                columns = f"{len(record):,} column{'' if len(record) == 1 else 's'}"
                yield number, BadLine(f"has {columns}, expected {len(names)} as in the first row")


def open_table(path: Path, are_names: Callable[[Sequence[Any]], bool], *, format: str = "") -> Table:
    """Open a file.

    are_names   function that tells whether the cells of the first row are column names
    format      how to read the file, a key of `FORMATS`; empty: decided by the ending of the file name
    """
    format = format or format_of(path)
    problem = ""
    for number, record in FORMATS[format](path):
        if not isinstance(record, BadLine):
            return Table(path, format, record, header=isinstance(record, list) and are_names(record))
        problem = problem or f"has no line that can be read: line {number:,} {record.reason}"
    raise ValueError(f"data: {path} {problem or 'is empty'}; expected at least one row of text")


def no_text(cell: object, column: str) -> BadLine:
    """Return a description of what is wrong with a cell that is not a text."""
    value = "no text" if cell is None else f"{type(cell).__name__} instead of a text"
    return BadLine(f"has {value} in column {column!r}")


def row_error(path: Path, number: int, broken: BadLine, *, others: int) -> ValueError:
    """Return the error for the first unusable row in a file; the message counts the `others`."""
    line = "row" if format_of(path) == ".parquet" else "line"
    least = "at least " if others == MOST_COUNTED else ""
    also = f", and {least}{others:,} more {line}{'' if others == 1 else 's'} cannot be used either" if others else ""
    them = "them" if others else "it"
    return ValueError(
        f"data: {path}, {line} {number:,} {broken.reason}{also}; correct {them}, or leave {them} out with --skip-broken"
    )
