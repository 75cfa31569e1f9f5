"""Check a COCO mask before pycocotools draws it in C, which does not check anything: a wrong one ends the process."""

from __future__ import annotations

from typing import Any

from contrapose.lab.evaluation.detection.index import is_number

_LONGEST = 1_000_000  # pixels of an outline: pycocotools takes a hundred bytes for each


def mask_problem(mask: Any, width: int, height: int) -> str:
    """Return why a mask cannot be drawn, as a predicate for a message; empty if it can.

    A mask is a list of polygons [x₁, y₁, x₂, y₂, …], or an object with the lengths of alternating runs of pixels outside and
    inside of it, from top to bottom and then from left to right.
    """
    if isinstance(mask, list):
        return _polygon_problem(mask, width, height)
    if not isinstance(mask, dict) or not {"size", "counts"} <= mask.keys():
        return "is neither a list of polygons nor an object with size and counts"
    if mask["size"] != [height, width]:
        return f"has the size {mask['size']!r:.80}, expected that of its image, [{height}, {width}]"
    counts = mask["counts"]
    lengths = _decode_lengths(counts) if isinstance(counts, str) else counts
    if not isinstance(lengths, list) or not all(type(length) is int and length >= 0 for length in lengths):
        return "has counts that are not lengths of runs of pixels"
    if sum(lengths) != width * height:
        return f"has counts of {sum(lengths):.9g} pixels in all, but its image has {width * height:,}"
    return ""


def _polygon_problem(polygons: list[Any], width: int, height: int) -> str:
    outline = 0.0
    for points in polygons:
        # pycocotools takes four numbers for a box.
        if not isinstance(points, list) or len(points) < 6 or len(points) % 2 or not all(map(is_number, points)):
            return f"has {points!r:.80}, expected the x and y of at least 3 points"
        for values, side in ((points[::2], width), (points[1::2], height)):
            if min(values) < -side or max(values) > 2 * side:
                return "has a polygon that is not in its image"
            outline += sum(abs(a - b) for a, b in zip(values, values[1:] + values[:1], strict=True))
    return f"has an outline of more than {_LONGEST:,} pixels" if outline > _LONGEST else ""


def _decode_lengths(text: str) -> list[int] | None:
    """Return the lengths in pycocotools' compressed text, 5 bits a character; None if it is damaged."""
    lengths = list[int]()
    value = shift = 0
    for character in text:
        bits = ord(character) - 48
        if not 0 <= bits < 64 or shift > 60:
            return None
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:  # the number continues
            continue
        value -= (1 << shift) if bits & 16 else 0
        # From the fourth on, a length is stored as its difference from the one before the last.
        lengths.append(value + (lengths[-2] if len(lengths) > 2 else 0))
        value = shift = 0
    return None if shift else lengths
