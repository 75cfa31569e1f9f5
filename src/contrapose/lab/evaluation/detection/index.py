"""`BoxIndex`, the images, classes and boxes in COCO's form that both readers return, and their common checks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

from contrapose.lab.modalities.input_files import path_inside
from contrapose.lab.modalities.modality import LARGEST_MEGAPIXELS

_LARGEST = 2**53  # up to which floating-point numbers have no gaps; a larger number is damage


class BoxIndex(TypedDict):
    """The content of a COCO annotation file; `file_name` of an image is a path that can be opened."""

    images: list[dict[str, Any]]
    annotations: list[dict[str, Any]]
    categories: list[dict[str, Any]]


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number of a size that occurs in annotations."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST


def check_size(width: Any, height: Any, where: str) -> None:
    """Refuse a width and height that no image has; `where` names the file in the error message."""
    if not all(is_number(side) and side >= 1 and side == int(side) for side in (width, height)):
        raise ValueError(
            f"data: {where}: expected a width and a height in pixels, got {width!r:.80} and {height!r:.80}"
        )
    if width * height > LARGEST_MEGAPIXELS * 1e6:  # masks are allocated at this size
        raise ValueError(f"data: {where}: {width} × {height} pixels are more than {LARGEST_MEGAPIXELS} megapixels")


def image_file(folder: Path, names: Sequence[str], *, listed_in: Path) -> Path:
    """Return the first of these files in a folder that exists; refuse a name that leads out of the folder."""
    paths = [path_inside(folder, name) for name in names]
    for path in paths:
        if path is None:
            raise ValueError(
                f"data: {listed_in} lists {names[0]!r:.200}, which is outside of {folder}; expected a file in it"
            )
        if os.path.isfile(path):
            return path
    raise ValueError(f"data: {paths[0]} does not exist, but {listed_in} lists it")


def clip_box(box: Sequence[float], width: int, height: int, where: str) -> list[float]:
    """Return COCO's (x, y, width, height) of a box (x₁, y₁, x₂, y₂), clipped to its image.

    Some boxes in VOC and COCO exceed their image by up to a pixel because of rounding. A larger excess is an error in the
    annotation, such as a wrong order or unit of the coordinates. `where` names the file in the error message.
    """
    x1, y1, x2, y2 = box
    outside = min(x1, y1) < -1 or x2 > width + 1 or y2 > height + 1
    if outside or x2 < x1 or y2 < y1:
        corners = ", ".join(f"{value:g}" for value in box)
        raise ValueError(
            f"data: {where}: the box from x, y to x, y ({corners}) is not in its image of {width} × {height}"
        )
    x1, y1, x2, y2 = max(x1, 0), max(y1, 0), min(x2, width), min(y2, height)
    return [x1, y1, x2 - x1, y2 - y1]
