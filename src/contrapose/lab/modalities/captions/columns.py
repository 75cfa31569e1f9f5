"""Which columns in a file of captions contain the image, the caption and the split."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from contrapose.lab.modalities.images.decoding import ENDINGS
from contrapose.lab.modalities.shards import SPLITS
from contrapose.lab.modalities.text.columns import choose_columns
from contrapose.lab.modalities.text.records import is_number

# Usual names, in order of preference if a file has several of them.
IMAGE = (
    "image",
    "image_path",
    "image_name",
    "image_file",
    "filepath",
    "file_path",
    "file_name",
    "filename",
    "file",
    "path",
    "img",
    "name",
)
CAPTION = ("caption", "captions", "text", "texts", "sentence", "sentences", "title", "description")
SPLIT = ("split",)
_CAPTION_NUMBER = re.compile(r"#\d+$")


def image_name(cell: str) -> str:
    """Return an image's name without the number of its caption: a.jpg for Flickr's a.jpg#0."""
    return _CAPTION_NUMBER.sub("", cell.strip())


def usual_column(names: Sequence[str], usual: Sequence[str]) -> str:
    """Return the column with a usual name, in any capitalisation; empty if there is none."""
    by_lower_case = {name.strip().lower(): name for name in reversed(names)}
    return next((by_lower_case[name] for name in usual if name in by_lower_case), "")


def choose_caption_columns(
    names: Sequence[str], first: Mapping[str, Any], requested: Sequence[str], *, file: str
) -> tuple[str, str, str]:
    """Return the columns of images, captions and splits; empty for a file without splits.

    first       the first row's values by column number, to identify columns without names; empty: columns have names
    requested   names, or numbers from 1 on, of two or three columns in this order; empty: the columns with usual names
    """
    if requested:
        return _requested(names, requested, file)
    if len(names) == 1:
        raise ValueError(
            f"data: {file} has one column, expected one of images and one of captions; in a .tsv file a tab separates them, in a "
            ".csv file a comma"
        )
    choose_columns(names, (), file=file)  # no name may occur twice
    if first:
        image, caption = _image_cell(first), _caption_cell(first)
        split = ""
    else:
        image, caption, split = (usual_column(names, usual) for usual in (IMAGE, CAPTION, SPLIT))
    for column, what, usual in ((image, "images", IMAGE), (caption, "captions", CAPTION)):
        if not column:
            raise ValueError(
                f"data: cannot tell which column of {file} has the {what}, of {', '.join(names)}; name the columns of images "
                f"and captions with --columns, for example --columns {names[0]} {names[-1]}, or write a first row with "
                f"names: {usual[0]} is recognised"
            )
    return image, caption, split


def _requested(names: Sequence[str], requested: Sequence[str], file: str) -> tuple[str, str, str]:
    if len(requested) not in (2, 3):
        raise ValueError(
            f"columns: expected two, of images and captions, or three with the one of splits (train, val, test), got "
            f"{len(requested)}: {' '.join(requested)}"
        )
    numbers = {str(number): name for number, name in enumerate(names, start=1)}
    chosen = [name if name in names else numbers.get(name, name) for name in requested]
    image, caption, *split = choose_columns(names, chosen, file=file)
    return image, caption, split[0] if split else ""


def _image_cell(first: Mapping[str, Any]) -> str:
    return next((name for name, cell in first.items() if _is_image(cell)), "")


def _caption_cell(first: Mapping[str, Any]) -> str:
    """Return the only column that contains neither images nor numbers; empty if there are several."""
    image = _image_cell(first)
    others = [name for name in first if name != image]
    # If there are two columns, the column without images has the captions, even if the first caption is a number.
    texts = others if len(others) == 1 else [name for name in others if not is_number(str(first[name]))]
    return texts[0] if len(texts) == 1 else ""


def _is_image(cell: Any) -> bool:
    return isinstance(cell, str) and PurePath(image_name(cell)).suffix.lower() in ENDINGS


def split_cell(first: Mapping[str, Any]) -> str:
    """Return the first column whose cell is the name of a split; empty if there is none."""
    return next((name for name, cell in first.items() if str(cell).strip().lower() in SPLITS), "")


def choose_split_columns(names: Sequence[str], first: Mapping[str, Any], *, file: str) -> tuple[str, str]:
    """Return the image column and the split column in a file of splits."""
    image = _image_cell(first) if first else usual_column(names, IMAGE)
    split = split_cell(first) if first else usual_column(names, SPLIT)
    if not image or not split:
        raise ValueError(
            f"data: cannot tell which columns of {file} have the images and their splits, of {', '.join(names)}; expected the "
            "name of an image and train, val or test in each row, such as: a.jpg<TAB>train"
        )
    return image, split


def are_names(cells: Sequence[Any], requested: Collection[str]) -> bool:
    """Return whether a first row is a header: one of its cells is a usual or a requested column name."""
    if any(name in cells for name in requested if not name.isdigit()):
        return True
    # A row with an image's name is not a header, even if its caption is a single word such as "text".
    usual = {*IMAGE, *CAPTION, *SPLIT}
    return not any(map(_is_image, cells)) and any(str(cell).strip().lower() in usual for cell in cells)
