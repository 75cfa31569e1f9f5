"""Records in text files, by format: a record is a list of cells, or values by column name."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from contrapose.extras import needs_extra
from contrapose.lab.memory_budget import OverBudget, check_allocation
from contrapose.lab.modalities.text.lines import COMPRESSIONS, EMPTY, LONGEST, BadLine, read_lines
from contrapose.lab.modalities.text.parquet_lengths import check_counts
from contrapose.lab.modalities.text.parquet_pages import read_pages

Record = list[Any] | dict[str, Any]
Numbered = Iterator[tuple[int, Record | BadLine]]  # with the number of the line or row
_BATCH = 4096  # rows to read from a Parquet file at a time, and bytes, unless one row has more
_BATCH_BYTES = 2**26
_COPIES = 4  # of a page in memory: unpacked, its values, and the texts in Python


def _read_plain(path: Path) -> Numbered:
    for number, line in read_lines(path):
        yield number, line if isinstance(line, BadLine) else [line]


def _read_tsv(path: Path) -> Numbered:
    # A quotation mark is an ordinary character: sentences contain unpaired quotation marks.
    for number, line in read_lines(path):
        yield number, line if isinstance(line, BadLine) else line.split("\t")


def _read_csv(path: Path) -> Numbered:
    """Yield the number of each record's first line, and the record's cells; a quoted cell may contain line breaks."""
    start, lines, length, is_open = 0, list[str](), 0, False  # of the record that is not complete yet
    for number, line in read_lines(path):
        if isinstance(line, BadLine) and not (lines and line == EMPTY):
            lines, length, is_open = [], 0, False
            yield number, line
            continue
        text = "" if isinstance(line, BadLine) else line
        start = start if lines else number
        lines.append(text)
        length += len(text) + 1
        # A complete record has an even number of quotation marks; an unclosed one must not swallow the rest of the file.
        is_open ^= text.count('"') % 2 == 1
        if not is_open or length > LONGEST + 1:
            yield start, _parse_csv("\n".join(lines))
            lines, length, is_open = [], 0, False
    if lines:
        yield start, _parse_csv("\n".join(lines))


def _parse_csv(record: str) -> Record | BadLine:
    if record.count('"') % 2:
        return BadLine("has a quotation mark that is not closed")
    try:
        return next(csv.reader([record], strict=True))
    except csv.Error as error:
        return BadLine(f"is not CSV: {error}")


def _read_json(path: Path) -> Numbered:
    for number, line in read_lines(path):
        yield number, line if isinstance(line, BadLine) else parse_json(line)


def parse_json(line: str) -> Record | BadLine:
    """Return a JSON object or array, or the reason why the line cannot be used."""
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        return BadLine(f"is not JSON: {error.msg} (character {error.pos + 1})")
    except (ValueError, RecursionError) as error:  # a number with thousands of digits, or thousands of nested brackets
        return BadLine(f"is not JSON that can be read: {error}")
    if not isinstance(value, dict | list):
        return BadLine("is neither a JSON object nor an array")
    if "\\ud" in line.lower() and not _is_unicode(value):
        return BadLine("has half of a surrogate pair, which is not a character")
    return value


def _is_unicode(value: Any) -> bool:
    """Return whether all strings in a JSON value can be encoded; half of a surrogate pair is valid JSON, but not a character."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):  # the reader allows a few more nested brackets than the writer
        return False
    return True


def _read_parquet(path: Path) -> Numbered:
    """Yield each row's values in the string columns, keyed by column name."""
    with needs_extra("a .parquet file", "parquet", {"pyarrow"}):
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    number = 0
    try:
        with path.open("rb") as raw, ParquetFile(path) as file:
            columns = [field.name for field in file.schema_arrow if _holds_strings(field.type)]
            twice = [name for name in columns if file.schema_arrow.names.count(name) > 1]
            if twice:
                raise ValueError(f"it has several columns with the name {twice[0][:80]!r}")
            for group in range(file.num_row_groups):
                rows = _batch_rows(raw, file, group, columns, path)
                for batch in file.iter_batches(batch_size=rows, row_groups=[group], columns=columns):
                    for record in batch.to_pylist():
                        number += 1
                        yield number, record
    except (PermissionError, OverBudget):
        raise
    except (ArrowException, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise ValueError(f"data: {path} cannot be read as Parquet: {reason}; copy or download it again") from error


def _batch_rows(raw: BinaryIO, file: Any, number: int, columns: Sequence[str], path: Path) -> int:
    """Return how many rows of a row group to read at a time; refuse pages that are too large."""
    group, names, largest = file.metadata.row_group(number), set(columns), 0
    for index in range(group.num_columns):
        chunk = group.column(index)
        # pyarrow reads a column x.y together with x, whether it is inside x or only has this name.
        if chunk.path_in_schema not in names and not names.intersection(_parents(chunk.path_in_schema)):
            continue
        # A value may repeat, in full, a text that its page stores only once, and no value is longer than its page.
        size = max((page.size for page in read_pages(raw, chunk)), default=0)
        check_allocation(_COPIES * size, f"data: a page of {path}")
        optional = file.schema.column(index).max_definition_level > 0
        for page in read_pages(raw, chunk):
            check_counts(raw, page, compression=chunk.compression, optional=optional, what=f"data: a page of {path}")
        largest += size
    check_allocation(_COPIES * largest, f"data: a page of {path}")
    return max(1, min(_BATCH, _BATCH_BYTES // max(1, largest)))


def _parents(path: str) -> Iterator[str]:
    """Yield the part of a path in front of each dot: a.b and a for a.b.c."""
    while "." in path:
        path = path.rpartition(".")[0]
        yield path


def _holds_strings(kind: Any) -> bool:
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


FORMATS: Mapping[str, Callable[[Path], Numbered]] = {
    ".txt": _read_plain,
    ".tsv": _read_tsv,
    ".csv": _read_csv,
    ".jsonl": _read_json,
    ".ndjson": _read_json,
    ".parquet": _read_parquet,
}


def format_of(path: Path) -> str:
    """Return the file name's ending that is a key of `FORMATS`; empty for a file in another format."""
    endings = [ending.lower() for ending in path.suffixes]
    compressed = bool(endings) and endings[-1] in COMPRESSIONS
    ending = "".join(endings[-2:-1] if compressed else endings[-1:])
    return ending if ending in FORMATS and not (compressed and ending == ".parquet") else ""


def is_number(text: str) -> bool:
    """Return whether a cell contains a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
