"""Texts beside points do not cover each other."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from contrapose.lab.report.document import Chart, Series
from contrapose.lab.report.draw import figure
from contrapose.lab.report.labels import PLACES, label_places

NAMES = ("τ = 0.1", "τ = 0.2", "τ = 0.3", "τ = 0.5", "τ = 1")
LINE = Series("NT-Xent", (3.25, 3.22, 3.08, 2.9, 2.7), (0.289, 0.294, 0.333, 0.368, 0.379), annotations=NAMES)
CHART = Chart("Plane", "-U", "T", (LINE, *(Series(f"{i}", (3.47 + i / 100,), (0.21 + i / 100,)) for i in range(4))))


def test_texts_of_near_points_are_apart_in_the_figure() -> None:
    drawn = figure(CHART)
    drawn.draw_without_rendering()
    boxes = [text.get_window_extent() for text in drawn.axes[0].texts]
    assert [text.get_text() for text in drawn.axes[0].texts] == list(NAMES)
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))


def test_series_without_texts_have_no_places() -> None:
    assert label_places(Chart("", "x", "y", (Series("a", (0.0,), (1.0,)), Series("b", (), ())), log_x=True)) == [(), ()]


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=1, max_size=8))
def test_every_text_has_a_place(points: list[tuple[float, float]]) -> None:
    x, y = zip(*points, strict=True)
    (places,) = label_places(Chart("", "x", "y", (Series("a", x, y, annotations=tuple("τ" for _ in points)),)))
    assert len(places) == len(points)
    assert set(places) <= set(PLACES)


def test_a_map_without_points_can_be_drawn() -> None:
    drawn = figure(Chart("Map of a run that is not done", x="", y="", series=()))
    assert not drawn.axes[0].spines["left"].get_visible()
    assert drawn.axes[0].get_legend() is None


def test_a_long_title_stays_in_the_figure() -> None:
    drawn = figure(Chart("A title that has many words " * 4, "x", "y", (LINE,)))
    drawn.draw_without_rendering()
    title = next(
        text for text in drawn.axes[0].get_children() if getattr(text, "get_text", str)().startswith("A title")
    )
    assert title.get_window_extent().x1 <= drawn.bbox.x1
