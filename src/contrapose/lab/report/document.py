"""The content of a page as plain data: tables, charts and text. `report.render` turns it into HTML and Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count


@dataclass(frozen=True)
class Number:
    """A measured number, the paper's number, and the runs from which the measured number comes."""

    ours: float | None = None  # mean over seeds; None if it was not measured
    spread: float = 0.0  # standard deviation over seeds
    count: int = 1  # number of seeds
    printed: float | None = None  # the number published in the paper
    runs: tuple[str, ...] = ()
    why: str = ""  # reason why there is no measurement
    note: str = ""  # what a reader must know about the measurement: its sampling error, or that it uses other images
    digits: int = 2

    @property
    def difference(self) -> float | None:
        """Our number minus the paper's; None if either is missing."""
        if self.ours is None or self.printed is None or math.isnan(self.ours):
            return None
        return self.ours - self.printed


@dataclass(frozen=True)
class Table:
    """A table; each row has a name and one number or text per column."""

    title: str
    columns: tuple[str, ...]  # without the column of row names
    rows: tuple[tuple[str, tuple[Number | str, ...]], ...]


@dataclass(frozen=True)
class Series:
    """One curve in a chart: its points, with optional error bars and texts."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    spread: tuple[float, ...] = ()
    printed: bool = False  # the paper's numbers: drawn thin and grey
    points: bool = False  # draw markers without a line
    labels: tuple[str, ...] = ()  # hover text of each point, only in HTML
    annotations: tuple[str, ...] = ()  # text drawn next to each point


@dataclass(frozen=True)
class Chart:
    """Curves over a common x axis."""

    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    log_x: bool = False
    alt: str = ""  # description for screen readers

    @property
    def is_map(self) -> bool:
        """Whether the axes have no names, as for a 2-D projection, in which only distances have a meaning."""
        return not (self.x or self.y)

    @property
    def has_whole_x(self) -> bool:
        """Whether ticks between whole numbers have no meaning: there is no epoch 1.5."""
        return not self.log_x and all(x == int(x) for series in self.series for x in series.x)

    def numbered(self) -> Iterator[tuple[int, Series]]:
        """Yield each series with its number, which determines its colour and marker."""
        # Measured and published series are counted separately, so that a method keeps its colour without the latter.
        counts = {True: count(), False: count()}
        return ((next(counts[series.printed]), series) for series in self.series)

    def log_ticks(self) -> dict[float, str]:
        """Return a tick and its text for each x value, if there are at most 15 values.

        By default, a logarithmic axis labels only powers of ten, and most charts over temperature span only one or two of them.
        """
        values = sorted({x for series in self.series for x in series.x})
        return {x: f"{x:g}" for x in values} if len(values) <= 15 else {}


@dataclass(frozen=True)
class Heat:
    """A heat map: numbers on a grid."""

    title: str
    x: str
    y: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    values: tuple[tuple[float | None, ...], ...]  # one row per y; None for an empty cell
    alt: str = ""
    unit: str = ""  # what the numbers are, with their unit, beside the scale of colours


@dataclass(frozen=True)
class Text:
    """Paragraphs of text."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class Picture:
    """An image, such as a contact sheet of a data set."""

    title: str
    png: bytes
    alt: str = ""


@dataclass(frozen=True)
class Thumbnail:
    """A small image with a caption, such as its weight."""

    image: bytes  # a PNG or JPEG file
    caption: str
    alt: str  # description for screen readers
    mark: str = ""  # "hit" or "miss" draws a frame; the caption says the same in words


@dataclass(frozen=True)
class Thumbnails:
    """Small images in groups, one line per group."""

    title: str
    groups: tuple[tuple[str, tuple[Thumbnail, ...]], ...]  # (name, images)


Block = Table | Chart | Heat | Picture | Thumbnails | Text


def words(*lines: str) -> Text:
    """Return a text with one paragraph per argument."""
    return Text(tuple(lines))


def points(name: str, xy: Sequence[tuple[float, float]], **flags: bool) -> Series:
    """Return a series from (x, y) pairs; `flags` are fields of Series such as `printed` or `points`."""
    return Series(name, tuple(x for x, _ in xy), tuple(y for _, y in xy), **flags)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Section:
    """One study, or another part of a page: its claims, their verdicts, and tables and figures."""

    title: str
    lead: str = ""
    verdicts: tuple[tuple[str, str, str], ...] = ()  # (statement, outcome, evidence)
    blocks: tuple[Block, ...] = ()
    notes: tuple[str, ...] = ()
    name: str = ""  # stem of the figure files' names


@dataclass(frozen=True)
class RunNote:
    """A description of a run, so that numbers can be traced to it."""

    name: str
    facts: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Document:
    """A page: its sections, the runs that its numbers come from, and a footer about machine and versions."""

    title: str
    lead: str
    sections: tuple[Section, ...]
    runs: tuple[RunNote, ...] = ()
    foot: tuple[str, ...] = ()
    interactive: bool = True  # whether charts react to the mouse, for which plotly adds several megabytes to the page
