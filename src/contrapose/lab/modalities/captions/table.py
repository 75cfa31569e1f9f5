"""Files of captions: TSV, CSV, JSON lines, Parquet, and Flickr's .txt, read row by row."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contrapose.lab.modalities.captions.columns import are_names
from contrapose.lab.modalities.text.lines import COMPRESSIONS, Broken, read_lines
from contrapose.lab.modalities.text.records import FORMATS, Numbered, by_name, first_record, format_of, read_records


@dataclass(frozen=True)
class Table:
    """Rows of a file, with the names of their columns; made by `open_table`."""

    path: Path
    names: tuple[str, ...]  # numbers from 1 on if the file has no names
    first: Mapping[str, Any]  # values of the first row if the file has no names; else empty
    header: bool  # whether the first row has the names

    def rows(self) -> Iterator[tuple[int, dict[str, Any] | Broken]]:
        """Yield each row's number and its values by name, or why it cannot be used."""
        names_follow = self.header
        for number, record in _records(self.path):
            if isinstance(record, Broken):
                yield number, record
            elif names_follow:
                names_follow = False
            else:
                yield number, by_name(record, self.names)


def open_table(path: Path, requested: Collection[str] = ()) -> Table:
    """Open a file; its first row has the names of the columns if one of them is usual, or is in `requested`."""
    first = first_record(path, _records(path))
    if isinstance(first, dict):
        return Table(path, tuple(first), {}, header=False)
    if are_names(first, requested):
        return Table(path, tuple(map(str, first)), {}, header=True)
    names = tuple(str(number) for number in range(1, len(first) + 1))
    return Table(path, names, dict(zip(names, first, strict=True)), header=False)


def find_tables(folder: Path, name: str) -> list[Path]:
    """Return the files of a folder that have this name and the ending of a known format."""
    paths = [folder / f"{name}{ending}{compression}" for ending in FORMATS for compression in ("", *COMPRESSIONS)]
    return [path for path in paths if format_of(path) and path.is_file()]


def _records(path: Path) -> Numbered:
    """Yield the records; a .txt file has columns as well: Flickr's have tabs, others are CSV."""
    if format_of(path) != ".txt":
        return read_records(path)
    line = next((line for _, line in read_lines(path) if isinstance(line, str)), "")
    return FORMATS[".tsv" if "\t" in line else ".csv"](path)
