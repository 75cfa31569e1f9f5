"""A folder of images, with their captions in a file."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from contrapose.lab.modalities.captions.columns import (
    are_names,
    choose_caption_columns,
    choose_split_columns,
    image_name,
)
from contrapose.lab.modalities.captions.read_report import ReadReport
from contrapose.lab.modalities.images.folder import all_images
from contrapose.lab.modalities.input_files import path_inside
from contrapose.lab.modalities.tars import printable
from contrapose.lab.modalities.text.lines import COMPRESSIONS, EMPTY, BadLine, read_lines
from contrapose.lab.modalities.text.records import FORMATS, format_of
from contrapose.lab.modalities.text.table import Table, no_text, open_table, row_error


def find_tables(folder: Path, name: str) -> list[Path]:
    """Return the files in a folder that have this name and a known format's ending."""
    paths = [folder / f"{name}{ending}{compression}" for ending in FORMATS for compression in ("", *COMPRESSIONS)]
    return [path for path in paths if format_of(path) and path.is_file()]


def _open(path: Path, requested: Sequence[str] = ()) -> Table:
    """Open a table. A .txt file has columns too: Flickr's files are separated by tabs, other files are CSV."""
    format = format_of(path)
    if format == ".txt":
        line = next((line for _, line in read_lines(path) if isinstance(line, str)), "")
        format = ".tsv" if "\t" in line else ".csv"
    return open_table(path, lambda cells: are_names(cells, requested), format=format)


def read_folder(file: Path, *, columns: Sequence[str], skip_broken: bool) -> ReadReport:
    """Read a file of captions, list the images in its folder, and read the file `split` next to it if there is one."""
    table, images = _open(file, columns), _ImageIndex(file.parent)
    image_column, caption_column, split_column = choose_caption_columns(
        table.names, _cells(table), columns, file=str(file)
    )
    advice = (
        f"expected the images beside {file.name} or in images/, by their names in column {image_column!r}: check the folder "
        "and the column (--columns)"
    )
    reading = ReadReport(str(file), advice)

    def add(row: dict[str, Any], where: str) -> BadLine | None:
        name, texts = _name(row, image_column), _texts(row, caption_column)
        if isinstance(name, BadLine):
            return name
        if isinstance(texts, BadLine):
            return texts
        image, split = images.find(name), row.get(split_column) or ""
        if isinstance(image, BadLine):
            return image
        problem = reading.assign(image, str(split)) if image is not None and split else None
        if problem is None:
            reading.add(image, name, texts, where)
        return problem

    _each_row(table, add, reading, skip_broken)
    _read_splits(file.parent, images, reading, skip_broken)
    if reading.without_image and reading.without_image[0].startswith(("http://", "https://")):
        reading.advice = "the images are web addresses: download them first, for example with img2dataset"
    reading.without_caption += [printable(name) for name, path in images.paths.items() if path not in reading.captions]
    return reading


def _cells(table: Table) -> dict[str, Any]:
    """Return the first row of a table without column names, by column number, to identify the columns."""
    return {} if table.named else dict(zip(table.names, table.first, strict=True))


def _read_splits(folder: Path, images: _ImageIndex, reading: ReadReport, skip_broken: bool) -> None:
    """Read each image's split from split.tsv, instead of from a column in the file of captions."""
    files = find_tables(folder, "split")
    if not files:
        return
    table = _open(files[0])
    image_column, split_column = choose_split_columns(table.names, _cells(table), file=str(files[0]))
    reading.splits.clear()

    def assign(row: dict[str, Any], where: str) -> BadLine | None:
        name = _name(row, image_column)
        if isinstance(name, BadLine):
            return name
        image = images.find(name)
        if isinstance(image, BadLine):
            return image
        # A name without an image is ignored: captions for this name have already been counted.
        return None if image is None else reading.assign(image, str(row.get(split_column) or ""))

    _each_row(table, assign, reading, skip_broken)
    if not reading.splits:
        # Without this error, all images would be used for training, even test images.
        raise ValueError(
            f"data: {files[0]} names no image of {folder}; expected the names that the captions have, such as "
            f"{printable(next(iter(images.paths), 'a.jpg'))}"
        )


def _each_row(
    table: Table, use: Callable[[dict[str, Any], str], BadLine | None], reading: ReadReport, skip_broken: bool
) -> None:
    """Call `use` with each row; the first unusable row is an error, or is counted if `skip_broken` is set."""
    first: tuple[int, BadLine] | None = None
    others = 0
    for number, row in table.rows():
        where = f"line {number:,} of {table.path.name}"
        if row == EMPTY:
            reading.empty.append(where)
            continue
        problem = row if isinstance(row, BadLine) else use(row, where)
        if problem is None:
            continue
        reading.broken.append(f"{where} {problem.reason}")
        first, others = (first, others + 1) if first else ((number, problem), 0)
    if first and not skip_broken:
        raise row_error(table.path, first[0], first[1], others=others)


def _name(row: dict[str, Any], column: str) -> str | BadLine:
    cell = row.get(column)
    return image_name(cell) if isinstance(cell, str) else no_text(cell, column)


def _texts(row: dict[str, Any], column: str) -> list[str] | BadLine:
    """Return the captions in a row: its cell is one text, or a list of texts."""
    cell = row.get(column)
    texts = [] if cell is None else cell if isinstance(cell, list) else [cell]
    other = next((text for text in texts if not isinstance(text, str)), "")
    return texts if isinstance(other, str) else no_text(other, column)


class _ImageIndex:
    """The images in a folder, found by their names in a file of captions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # The folder is listed once: asking the file system for each caption would be slow for large network folders.
        self.paths = {path.relative_to(folder).as_posix(): path for path in all_images(folder)}

    def find(self, name: str) -> Path | BadLine | None:
        """Return the file for an image name that is relative to the folder or to its images/; None if there is no such file.

        A name that leads out of the folder is refused: a table from elsewhere must not choose which files are read.
        """
        candidates = [posixpath.normpath(name), posixpath.normpath(posixpath.join("images", name))]
        for candidate in candidates:
            if candidate in self.paths:
                return self.paths[candidate]
        # The file may be hidden, have an unusual ending, or be given by its whole path.
        for path in (path_inside(self.folder, candidate) for candidate in candidates):
            if path is None:
                return BadLine(f"names {name!r:.200}, which is outside of {self.folder}")
            if os.path.isfile(path):
                return path
        return self.find(name.replace("\\", "/")) if "\\" in name else None
