"""Records in text files, by format: a record is a list of cells, or values by column name."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from contrapose.extras import needs_extra
from contrapose.lab.modalities.text.lines import COMPRESSIONS, EMPTY, LONGEST, BadLine, read_lines

Record = list[Any] | dict[str, Any]
Numbered = Iterator[tuple[int, Record | BadLine]]  # with the number of the line or row
_BATCH = 4096  # rows to read from a Parquet file at a time


def _read_plain(path: Path) -> Numbered:
    for number, line in read_lines(path):
        yield number, line if isinstance(line, BadLine) else [line]


def _read_tsv(path: Path) -> Numbered:
    # A quotation mark is an ordinary character: sentences contain unpaired quotation marks.
    for number, line in read_lines(path):
        yield number, line if isinstance(line, BadLine) else line.split("\t")


def _read_csv(path: Path) -> Numbered:
    """Yield the number of each record's first line, and the record's cells; a quoted cell may contain line breaks."""
    start, record = 0, ""
    for number, line in read_lines(path):
        if isinstance(line, BadLine) and not (record and line == EMPTY):
            record = ""
            yield number, line
            continue
        text = "" if isinstance(line, BadLine) else line
        start, record = (start, f"{record}\n{text}") if record else (number, text)
        # A complete record has an even number of quotation marks; an unclosed one must not swallow the rest of the file.
        if record.count('"') % 2 == 0 or len(record) > LONGEST:
            yield start, _parse_csv(record)
            record = ""
    if record:
        yield start, _parse_csv(record)


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
    except UnicodeEncodeError:
        return False
    return True


def _read_parquet(path: Path) -> Numbered:
    """Yield each row's values in the string columns, keyed by column name."""
    with needs_extra("a .parquet file", "parquet", {"pyarrow"}):
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    number = 0
    try:
        with ParquetFile(path) as file:
            columns = [field.name for field in file.schema_arrow if _holds_strings(field.type)]
            for batch in file.iter_batches(batch_size=_BATCH, columns=columns):
                for record in batch.to_pylist():
                    number += 1
                    yield number, record
    except PermissionError:
        raise
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise ValueError(f"data: {path} cannot be read as Parquet: {reason}; copy or download it again") from error


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
