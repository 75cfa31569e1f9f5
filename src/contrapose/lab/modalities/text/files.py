"""Files of sentences, pairs and triplets: plain text, TSV, CSV, JSON lines and Parquet, read row by row."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

from contrapose.lab.modalities.input_files import check_file
from contrapose.lab.modalities.text.columns import choose_columns, is_header
from contrapose.lab.modalities.text.lines import COMPRESSIONS, LONGEST, TOO_LONG, BadLine
from contrapose.lab.modalities.text.records import FORMATS, format_of, is_number
from contrapose.lab.modalities.text.table import MOST_COUNTED, Table, no_text, open_table, row_error

_ROWS_BELOW = 10  # rows below the first one that help to tell whether it is a header


@dataclass(frozen=True)
class TextFile:
    """Rows of texts in a file that stays on disk; created by `open_texts`."""

    table: Table
    columns: tuple[str, ...]  # names of the columns to read; numbers from 1 on if the columns have no names
    skip_broken: bool = False

    @property
    def path(self) -> Path:
        """The file."""
        return self.table.path

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yield one text per column, row by row; an unusable row is an error or, with `skip_broken`, skipped."""
        rows, empty = self.read(), True
        for number, row in rows:
            if not isinstance(row, BadLine):
                empty = False
                yield row
            elif not self.skip_broken:
                others = (other for _, other in rows if isinstance(other, BadLine))
                raise row_error(self.path, number, row, others=sum(1 for _ in islice(others, MOST_COUNTED)))
        if empty:
            raise ValueError(f"data: {self.path} has no row that can be used; expected at least one row of text")

    def __len__(self) -> int:
        """Return the number of rows; the first call reads the whole file."""
        return self._counts[0]

    @property
    def unused(self) -> tuple[str, ...]:
        """Names of the columns that are not read."""
        columns = set(self.columns)  # there may be tens of thousands
        return tuple(name for name in self.table.names if name not in columns)

    @property
    def skipped(self) -> int:
        """Number of unusable rows that are left out."""
        return self._counts[1]

    @cached_property
    def _counts(self) -> tuple[int, int]:
        if not self.skip_broken:
            return sum(1 for _ in self.rows()), 0
        broken = Counter(isinstance(row, BadLine) for _, row in self.read())
        return broken[False], broken[True]

    @cached_property
    def fingerprint(self) -> str:
        """A checksum of the file's content and of the choice of columns."""
        with self.path.open("rb") as file:
            digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8))
        settings = [self.table.format, self.columns, self.table.header, self.skip_broken]
        digest.update(json.dumps(settings).encode())
        return digest.hexdigest()

    def read(self) -> Iterator[tuple[int, tuple[str, ...] | BadLine]]:
        """Yield each row's number, and its texts or the reason why the row cannot be used."""
        for number, row in self.table.rows():
            yield number, row if isinstance(row, BadLine) else self._choose(row)

    def _choose(self, row: dict[str, object]) -> tuple[str, ...] | BadLine:
        """Return the texts of the columns."""
        texts = []
        for column in self.columns:
            text = row.get(column)
            if not isinstance(text, str):
                return no_text(text, column)
            if not text.strip():
                return BadLine(f"has an empty text in column {column!r}")
            if len(text) > LONGEST:
                return TOO_LONG
            texts.append(text)
        return tuple(texts)


def is_text_file(path: Path) -> bool:
    """Return whether the file name ends like a format that `open_texts` reads."""
    return format_of(path) != ""


def open_texts(path: Path, *, columns: Sequence[str] = (), skip_broken: bool = False) -> TextFile:
    """Open a file of texts in UTF-8; its suffix determines the format.

    .txt              one text per line
    .tsv, .csv        one row per line; the first row is a header if one of its cells is in `columns`, or if all look like names
                      and one is a usual column name, such as sentence1 or anchor. In a .tsv file a quotation mark is an ordinary
                      character
    .jsonl, .ndjson   one object with texts by name, or one array of texts, per line
    .parquet          columns of strings

    All but .parquet may be compressed: .gz, .xz, .bz2.

    columns       columns to read, by name, or by number from 1 on if columns have no names; empty: the columns with usual
                  names, anchors first and negatives last, or else all columns
    skip_broken   leave out unusable rows (empty, damaged, too long); by default the first unusable row is an error
    """
    check_path(path)
    table = open_table(path, lambda cells: _are_names(cells, columns, path))
    names, first = list(table.names), table.first
    if isinstance(first, dict):
        # A string column in a Parquet file may start with an empty value.
        texts = [name for name, value in first.items() if isinstance(value, str) or table.format == ".parquet"]
        names = texts + [name for name in columns if name in first and name not in texts]
        if not names:
            others = f", only {', '.join(first)}" if first else ""
            raise ValueError(f"data: {path} has no column of text{others}; expected at least one")
    opened = TextFile(table, choose_columns(names, columns, file=str(path)), skip_broken)
    if not columns:
        _check_numbers(opened)
    return opened


def check_path(path: Path) -> None:
    """Refuse a path that is not a file in a known format."""
    if path.is_dir():
        raise ValueError(f"data: {path} is a folder; expected a file of texts")
    if not is_text_file(path):
        raise ValueError(
            f"data: cannot tell the format of {path}; expected a name that ends in {', '.join(FORMATS)}, where all but .parquet "
            f"may be compressed ({', '.join(COMPRESSIONS)})"
        )
    if not path.exists():
        raise ValueError(f"data: {path} does not exist; expected a file of texts")
    check_file(path)


def _are_names(cells: Sequence[str], columns: Sequence[str], path: Path) -> bool:
    """Return whether the first row is a header: it has a requested column name, or looks like one with usual names."""
    format = format_of(path)
    if format not in (".tsv", ".csv"):
        return False
    if any(column in cells for column in columns if not column.isdigit()):
        return True
    rows = (row for _, row in islice(FORMATS[format](path), 1, 1 + _ROWS_BELOW) if isinstance(row, list))
    return is_header(cells, list(rows))


def _check_numbers(texts: TextFile) -> None:
    """Refuse a column of numbers among several columns: a score or an id is not a text."""
    # Two rows are checked, since the first row may be a header that was not recognised.
    rows = (row for _, row in islice(texts.read(), 2) if not isinstance(row, BadLine))
    for row in rows:
        for column, cell in zip(texts.columns, row, strict=True):
            if len(row) > 1 and is_number(cell):
                others = " ".join(name for name in texts.columns if name != column)
                raise ValueError(
                    f"data: column {column!r} of {texts.path} has numbers such as {cell!r}; name the columns of text, for "
                    f"example --columns {others}"
                )
