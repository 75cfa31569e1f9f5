"""`BoxIndex`, the images, classes and boxes in COCO's form that both readers return, and the check of a box."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypedDict


class BoxIndex(TypedDict):
    """The content of a COCO annotation file; `file_name` of an image is a path that can be opened."""

    images: list[dict[str, Any]]
    annotations: list[dict[str, Any]]
    categories: list[dict[str, Any]]


def clip_box(box: Sequence[float], width: int, height: int, where: str) -> list[float]:
    """Return COCO's (x, y, width, height) of a box (x₁, y₁, x₂, y₂), clipped to its image.

    Some boxes in VOC and COCO exceed their image by up to a pixel because of rounding. A larger excess is an error in the
    annotation, such as a wrong order or unit of the coordinates. `where` names the file in the error message.
    """
    x1, y1, x2, y2 = box
    outside = min(x1, y1) < -1 or x2 > width + 1 or y2 > height + 1
    if outside or x2 < x1 or y2 < y1 or not all(map(math.isfinite, box)):
        corners = ", ".join(f"{value:g}" for value in box)
        raise ValueError(
            f"data: {where}: the box from x, y to x, y ({corners}) is not in its image of {width} × {height}"
        )
    x1, y1, x2, y2 = max(x1, 0), max(y1, 0), min(x2, width), min(y2, height)
    return [x1, y1, x2 - x1, y2 - y1]
