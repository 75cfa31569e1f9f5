"""What a page is made of: tables, charts and words, as plain data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Number:
    """A measured number beside a printed one, with where it came from."""

    ours: float | None = None
    spread: float = 0.0
    count: int = 1  # how many seeds
    printed: float | None = None
    runs: tuple[str, ...] = ()
    why: str = ""  # why there is none
    digits: int = 2

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        if self.ours is None or self.printed is None or math.isnan(self.ours):
            return None
        return self.ours - self.printed


@dataclass(frozen=True)
class Table:
    """Rows of a name and numbers (or words)."""

    title: str
    columns: tuple[str, ...]  # of the numbers
    rows: tuple[tuple[str, tuple[Number | str, ...]], ...]


@dataclass(frozen=True)
class Series:
    """One curve: points, how uncertain they are, and what stands beside them."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    spread: tuple[float, ...] = ()
    printed: bool = False  # the paper's own numbers: drawn thin
    points: bool = False  # marks without a line
    labels: tuple[str, ...] = ()  # of each point, for whoever hovers
    shown: tuple[str, ...] = ()  # words that stand beside each point


@dataclass(frozen=True)
class Chart:
    """Curves over one axis."""

    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    log_x: bool = False
    alt: str = ""  # what it shows, in words


@dataclass(frozen=True)
class Heat:
    """Numbers over two axes."""

    title: str
    x: str
    y: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    values: tuple[tuple[float | None, ...], ...]  # a row for each y
    alt: str = ""


@dataclass(frozen=True)
class Text:
    """A paragraph, or a list."""

    lines: tuple[str, ...]


Block = Table | Chart | Heat | Text


def words(*lines: str) -> Text:
    """Some lines of text."""
    return Text(tuple(lines))


def points(name: str, found: Sequence[tuple[float, float]], **more: bool) -> Series:
    """A series from (x, y) pairs."""
    return Series(name, tuple(x for x, _ in found), tuple(y for _, y in found), **more)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Section:
    """One study, or one part of a page: what is claimed, how it came out, and what is shown."""

    title: str
    lead: str = ""
    verdicts: tuple[tuple[str, str, str], ...] = ()  # (statement, outcome, evidence)
    blocks: tuple[Block, ...] = ()
    notes: tuple[str, ...] = ()
    name: str = ""  # of its files


@dataclass(frozen=True)
class RunNote:
    """A run, so that a number can be traced to it."""

    name: str
    facts: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Document:
    """A page: sections, the runs behind them, and where and how they were made."""

    title: str
    lead: str
    sections: tuple[Section, ...]
    runs: tuple[RunNote, ...] = ()
    foot: tuple[str, ...] = ()
