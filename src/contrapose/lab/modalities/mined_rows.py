"""Write rows of a query, its document and negatives to a file that `train` can read: .tsv, .jsonl or .parquet."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from contrapose.extras import install_command
from contrapose.lab.modalities.text.files import open_texts
from contrapose.lab.modalities.text.lines import LONGEST
from contrapose.validate import check_output_file

FORMATS = (".tsv", ".jsonl", ".parquet")
_ROWS = 2**14  # rows of a Parquet file to hold in memory
_SEPARATORS = re.compile(r"[\t\r\n]+")

Row = Sequence[str]


def check_rows_file(path: Path) -> None:
    """Refuse a path to which rows cannot be written, before they are computed."""
    if path.suffix not in FORMATS:
        raise ValueError(f"out: expected a name that ends in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, got {path}")
    if path.suffix == ".parquet":
        try:
            import pyarrow  # noqa: F401  found missing now, and not after an hour
        except ImportError as error:
            raise ValueError(f"out: writing .parquet needs: {install_command('parquet')}") from error
    check_output_file("out", path)


def write_rows(path: Path, names: Sequence[str], rows: Iterable[Row]) -> int:
    """Write rows of texts with these column names; return the number of texts that are written with spaces for line breaks.

    A file that was there before is only replaced when all rows are written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        if path.suffix == ".parquet":
            _write_parquet(unfinished, names, rows)
            changed = 0
        else:
            changed = _write_lines(unfinished, names, rows, as_json=path.suffix == ".jsonl")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return changed


def _write_lines(path: Path, names: Sequence[str], rows: Iterable[Row], *, as_json: bool) -> int:
    changed = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        if not as_json:
            file.write("\t".join(names) + "\n")
        for number, row in enumerate(rows, start=1):
            if as_json:
                line = json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False)
            else:
                # A .tsv file has no quotation: a tab ends a text, and a line break ends the row.
                cells = [_SEPARATORS.sub(" ", text) for text in row]
                changed += sum(cell != text for cell, text in zip(cells, row, strict=True))
                line = "\t".join(cells)
            if len(line) > LONGEST:
                raise ValueError(
                    f"out: row {number:,} has {len(line):,} characters, and `train` reads at most {LONGEST:,} in a line; write a "
                    ".parquet file, or use fewer --negatives"
                )
            file.write(f"{line}\n")
    return changed


def _write_parquet(path: Path, names: Sequence[str], rows: Iterable[Row]) -> None:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    schema = pa.schema([(name, pa.string()) for name in names])
    with ParquetWriter(path, schema) as file:
        remaining = iter(rows)
        while part := list(islice(remaining, _ROWS)):
            columns = [pa.array(column, pa.string()) for column in zip(*part, strict=True)]
            file.write_table(pa.table(columns, schema=schema))


def reading_options(path: Path, names: Sequence[str]) -> list[str]:
    """Return the options with which `train` reads all columns of a file of rows; empty if it does so by itself."""
    try:
        chosen = open_texts(path).columns == tuple(names)
    except ValueError:  # the first texts are numbers
        chosen = False
    return [] if chosen else ["--columns", *names]


def tuples(
    queries: Sequence[str],
    documents: Sequence[str],
    positives: Sequence[Sequence[int]],
    negatives: Sequence[Sequence[int]],
    *,
    count: int,
) -> Iterator[Row]:
    """Yield a row for each query and document of its own, with `count` negatives; queries with fewer are left out."""
    for query, own, found in zip(queries, positives, negatives, strict=True):
        if len(found) == count:
            texts = [documents[row] for row in found]
            yield from ((query, documents[row], *texts) for row in own)


def triplets(
    queries: Sequence[str],
    documents: Sequence[str],
    positives: Sequence[Sequence[int]],
    negatives: Sequence[Sequence[int]],
) -> Iterator[Row]:
    """Yield a row for each query, document of its own and negative."""
    for query, own, found in zip(queries, positives, negatives, strict=True):
        yield from ((query, documents[one], documents[other]) for one in own for other in found)
