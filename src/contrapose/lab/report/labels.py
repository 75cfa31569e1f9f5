"""Place the texts next to a chart's points so that no text covers another text, a point or a curve."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from contrapose.lab.report.document import Chart, Series

PLACES = ("top right", "bottom left", "top left", "bottom right")  # plotly's names, in order of preference
# Size of a short text such as "τ = 0.2", as a fraction of the axes in a chart that is as narrow as a phone.
_WIDTH, _HEIGHT = 0.17, 0.075
Point = tuple[float, float]


def label_places(chart: Chart) -> list[tuple[str, ...]]:
    """Return a place for each annotation of each series; the places are chosen one after another."""
    if not any(series.annotations for series in chart.series):
        return [() for _ in chart.series]
    curves = [_scaled(chart, series) for series in chart.series]
    obstacles = [point for curve in curves for point in _along(curve)]
    taken: list[Point] = []  # centres of the texts that have a place
    places = []
    for series, curve in zip(chart.series, curves, strict=True):
        chosen = []
        for point in curve[: len(series.annotations)]:
            centres = {place: _centre(point, place) for place in PLACES}
            place = min(PLACES, key=lambda place: _collisions(centres[place], taken, obstacles))
            taken.append(centres[place])
            chosen.append(place)
        places.append(tuple(chosen))
    return places


def _scaled(chart: Chart, series: Series) -> list[Point]:
    """Return the points as fractions of the axes, from 0 to 1."""
    x = [math.log(x) if chart.log_x else x for s in chart.series for x in s.x]
    y = [y for s in chart.series for y in s.y]
    width, height = (max(x) - min(x)) or 1.0, (max(y) - min(y)) or 1.0
    return [
        (((math.log(a) if chart.log_x else a) - min(x)) / width, (b - min(y)) / height)
        for a, b in zip(series.x, series.y, strict=True)
    ]


def _along(curve: Sequence[Point]) -> Iterable[Point]:
    """Yield the points of a curve, and some points on the lines between them."""
    yield from curve
    for (x0, y0), (x1, y1) in pairwise(curve):
        yield from ((x0 + (x1 - x0) * part / 8, y0 + (y1 - y0) * part / 8) for part in range(1, 8))


def _centre(point: Point, place: str) -> Point:
    vertical, horizontal = place.split()
    return (
        point[0] + (_WIDTH if horizontal == "right" else -_WIDTH) * 0.6,
        point[1] + (_HEIGHT if vertical == "top" else -_HEIGHT) * 0.7,
    )


def _collisions(centre: Point, texts: Iterable[Point], points: Iterable[Point]) -> float:
    """Return how many texts and points a text at this place would cover; extending beyond the axes also counts."""
    x, y = centre
    covered = sum(2.0 for a, b in texts if abs(a - x) < _WIDTH and abs(b - y) < _HEIGHT)
    covered += sum(1.0 for a, b in points if abs(a - x) < _WIDTH / 2 and abs(b - y) < _HEIGHT / 2)
    return covered + 1.5 * (x + _WIDTH / 2 > 1.1 or x - _WIDTH / 2 < -0.1)
