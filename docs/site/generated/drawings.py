"""Drawings as inline SVG, whose colours come from the page, so that they can be read in light and dark mode."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from torch import Tensor

WIDTH = 380  # of all drawings, so that text is as large as the page's on a phone


def _svg(width: float, height: float, label: str, parts: Sequence[str]) -> str:
    shape = f'viewBox="0 0 {width:g} {height:g}" style="max-width: {1.5 * width:g}px"'
    return f'<svg class="drawing" {shape} role="img" aria-label="{escape(label)}">\n' + "\n".join(parts) + "\n</svg>"


def _text(x: float, y: float, text: str, *, anchor: str = "middle", kind: str = "") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def curves(series: Mapping[str, tuple[Sequence[float], Sequence[float]]], *, x_label: str, y_label: str) -> str:
    """Draw curves y(x) with a legend; `series` has the points of each curve by name."""
    left, right, top, bottom = 44, WIDTH - 8, 22, 190
    xs = [x for points in series.values() for x in points[0]]
    low, high = min(xs), max(xs)
    largest = _round_up(max(y for points in series.values() for y in points[1]))

    def place(x: float, y: float) -> str:
        return f"{left + (x - low) / (high - low) * (right - left):.1f},{bottom - y / largest * (bottom - top):.1f}"

    parts = [f'<line x1="{left}" y1="{bottom}" x2="{right}" y2="{bottom}"/>']
    parts += [f'<line x1="{left}" y1="{top}" x2="{left}" y2="{bottom}"/>', _text(left, 12, y_label, anchor="start")]
    for x in (low, (low + high) / 2, high):
        parts.append(_text(left + (x - low) / (high - low) * (right - left), bottom + 16, f"{x:g}"))
    for y in (0.0, largest / 2, largest):
        parts.append(_text(left - 5, bottom - y / largest * (bottom - top) + 4, f"{y:.2g}", anchor="end"))
    parts.append(_text((left + right) / 2, bottom + 32, x_label))
    for number, (name, (x_values, y_values)) in enumerate(series.items()):
        points = "L".join(place(x, y) for x, y in zip(x_values, y_values, strict=True))
        row = bottom + 52 + 18 * number
        parts.append(f'<path class="curve{number}" d="M{points}"/>')
        parts.append(f'<path class="curve{number}" d="M{left},{row - 4}L{left + 28},{row - 4}"/>')
        parts.append(_text(left + 36, row, name, anchor="start"))
    return _svg(WIDTH, bottom + 44 + 18 * len(series), f"{y_label} against {x_label}", parts)


def _round_up(value: float) -> float:
    """Return the next number of the form 1, 1.5, 2, 2.5, 3, 4, 5, 6 or 8 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if step * power >= 0.9999 * value)


def matrix(similarity: Tensor, marks: Sequence[Sequence[str]], rows: Sequence[str], columns: Sequence[str]) -> str:
    """Draw a matrix of similarities (n, m); a mark is "chosen", "positive", "other" or "own" (the anchor itself)."""
    left, top = 34, 34
    size = (WIDTH - left - 6) / max(len(columns), 12)
    parts = []
    for i, name in enumerate(rows):
        parts.append(_text(left - 6, top + size * (i + 0.65), name, anchor="end", kind="small"))
        for j, mark in enumerate(marks[i]):
            x, y = left + size * j, top + size * i
            cell = f'x="{x + 1:.1f}" y="{y + 1:.1f}" width="{size - 2:.1f}" height="{size - 2:.1f}"'
            value = float(similarity[i, j])
            # Opacity, not a colour: it works on light and dark pages.
            parts.append(f'<rect class="cell {mark}" {cell} fill-opacity="{0.08 + 0.62 * max(0.0, value):.2f}"/>')
            if mark == "positive":
                parts.append(_text(x + size / 2, y + size / 2 + 4, "+"))
            elif mark == "chosen":
                parts.append(f'<circle cx="{x + size / 2:.1f}" cy="{y + size / 2:.1f}" r="{size / 6:.1f}"/>')
    for j, name in enumerate(columns):
        parts.append(_text(left + size * (j + 0.5), top - 6, name, kind="small"))
    parts.append(_text(left, 12, "anchors down, candidates across", anchor="start", kind="small"))
    width, height = left + size * len(columns) + 6, top + size * len(rows) + 6
    return _svg(max(width, 220), height, "which candidates are negatives of each anchor", parts)


def clouds(examples: Sequence[tuple[str, Tensor, Tensor, Sequence[str]]]) -> str:
    """Draw unit vectors (n, 2) on circles, each with a title, classes (n,) and lines of text below."""
    size = WIDTH / len(examples)
    radius, middle = 0.38 * size, 22 + size / 2
    parts = []
    for number, (title, z, labels, lines) in enumerate(examples):
        x = size * (number + 0.5)
        parts.append(_text(x, 12, title))
        parts.append(f'<circle class="ring" cx="{x:.1f}" cy="{middle:.1f}" r="{radius:.1f}"/>')
        for (a, b), label in zip(z.tolist(), labels.tolist(), strict=True):
            place = f'cx="{x + radius * a:.1f}" cy="{middle - radius * b:.1f}"'
            parts.append(f'<circle class="point{label}" {place} r="4"/>')
        parts += [_text(x, middle + size / 2 + 14 + 16 * row, line) for row, line in enumerate(lines)]
    height = middle + size / 2 + 8 + 16 * max(len(lines) for *_, lines in examples)
    return _svg(WIDTH, height, "the metric on three sets of embeddings", parts)


def diagram(boxes: Mapping[str, Mapping[str, Any]], arrows: Sequence[Sequence[str]], label: str) -> str:
    """Draw boxes on a grid, and arrows between them.

    boxes    by name: `text` (lines separated by "/"), `at` = [column, row], `kind` (input, trained, momentum, stored or loss),
             and `span` if it is wider than one column
    arrows   [from, to, kind]: "flow" carries a gradient back, "stop" does not, "update" changes the other box after a step
    """
    columns = max(box["at"][0] + box.get("span", 1) for box in boxes.values())
    rows = 1 + max(box["at"][1] for box in boxes.values())
    step_x, step_y, gap, height = WIDTH / columns, 74.0, 22.0, 42.0
    places = {}
    parts = [
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="head" d="M0,0L8,4L0,8z"/></marker></defs>'
    ]
    for name, box in boxes.items():
        column, row = box["at"]
        x, y = column * step_x + gap / 2, row * step_y + 4
        width = box.get("span", 1) * step_x - gap
        places[name] = (x, y, width)
        lines = box["text"].split("/")
        parts.append(
            f'<rect class="box {box["kind"]}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:g}" rx="5"/>'
        )
        first = y + height / 2 + 4 - 7.5 * (len(lines) - 1)
        parts += [_text(x + width / 2, first + 15 * number, line) for number, line in enumerate(lines)]
    for start, end, kind in arrows:
        x1, y1, x2, y2 = _ends(places[start], places[end], height)
        parts.append(f'<path class="{kind}" d="M{x1:.1f},{y1:.1f}L{x2:.1f},{y2:.1f}" marker-end="url(#arrow)"/>')
    return _svg(WIDTH, rows * step_y - 24, label, parts)


def _ends(
    start: tuple[float, float, float], end: tuple[float, float, float], height: float
) -> tuple[float, float, float, float]:
    """Return the ends of an arrow between two boxes (x, y, width): down or up, or across within a row."""
    (x1, y1, width1), (x2, y2, width2) = start, end
    if y1 == y2:
        return (x1 + width1, y1 + height / 2, x2, y2 + height / 2) if x1 < x2 else (
            x1, y1 + height / 2, x2 + width2, y2 + height / 2)  # fmt: skip
    # Straight down where the boxes overlap, so that arrows of a wide box do not cross
    low, high = max(x1, x2), min(x1 + width1, x2 + width2)
    a, b = ((low + high) / 2,) * 2 if high - low > 8 else (x1 + width1 / 2, x2 + width2 / 2)
    return (a, y1 + height, b, y2) if y1 < y2 else (a, y1, b, y2 + height)
