"""Tables in a terminal: as wide as the terminal, or as wide as needed if the output goes to a file or a program."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence

_GAP = "  "  # between columns
_LEAST_WIDTH = 16  # of a column with folded names: the longest word in a loss is about as long
Cells = Sequence[str]


def print_table(headings: Cells, rows: Sequence[Cells], *, details: Sequence[str] = ()) -> None:
    """Print rows of cells below their headings.

    In a terminal that is too narrow, columns with the headings in `details` are printed below each row, as many as necessary
    and the first ones first, so that names in the other columns can still be copied. Without `details`, cells are folded.
    """
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)  # a path may have square brackets
    widths = dict(zip(headings, _widths([headings, *rows]), strict=True))
    below: list[str] = []
    while console.is_terminal and _total(widths) > console.width and len(below) < len(details):
        below.append(details[len(below)])
        del widths[below[-1]]
    if not console.is_terminal or below or _total(widths) <= console.width:
        for row in (headings, *rows):
            cells = dict(zip(headings, row, strict=True))
            print(_GAP.join(cells[heading].ljust(width) for heading, width in widths.items()).rstrip())
            if below and row is not headings:
                print(
                    _in_lines(
                        [f"{heading} {cells[heading]}" for heading in headings if heading in below], console.width
                    )
                )
        return
    table = Table(box=None, pad_edge=False, padding=(0, len(_GAP), 0, 0))
    for heading in headings:
        table.add_column(heading, overflow="fold")  # by default, the end of a long name is cut off
    for row in rows:
        table.add_row(*row)
    with console.capture() as captured:  # printed by `print`, because rich exits the process if the output is closed
        console.print(table)
    print(captured.get(), end="")


def fold_names(headings: Cells, rows: Sequence[Cells], width: int) -> tuple[Cells, list[Cells]]:
    """Return a table's headings and rows with line breaks in the first column and in headings, if it is wider than `width`.

    The other columns are numbers, which stay in one piece. Each column takes three characters for its borders.
    """
    borders = 3 * len(headings) + 1
    if sum(_widths([headings, *rows])) + borders <= width:
        return headings, list(rows)
    words = [max(map(len, heading.split())) for heading in headings[1:]]
    numbers = list(map(max, words, _widths([row[1:] for row in rows])))
    first = width - sum(numbers) - borders
    if first < _LEAST_WIDTH:  # nothing stays in one piece
        return headings, list(rows)
    folded = [textwrap.fill(heading, number) for heading, number in zip(headings[1:], numbers, strict=True)]
    return (headings[0], *folded), [(fold(row[0], first), *row[1:]) for row in rows]


def fold(text: str, width: int) -> str:
    """Break a text into lines after spaces and inside losses, where a reader would: after brackets, commas and "=".

    >>> print(fold("nt_xent(temperature=cosine(0.07, 0.2), negatives=hardest(64))", 20))
    nt_xent(temperature=
    cosine(0.07, 0.2),
    negatives=hardest(
    64))
    """
    lines = [""]
    for word in re.findall(r"[^ (,=]*[ (,=]*", text):
        if lines[-1] and len(lines[-1]) + len(word.rstrip()) > width:
            lines.append("")
        lines[-1] += word
    return "\n".join(line.rstrip() for line in lines)


def _in_lines(items: Sequence[str], width: int) -> str:
    """Return indented lines of items; an item is broken only if it does not fit on a line of its own."""
    indent, lines = " " * 4, [""]
    for item in items:
        joined = f"{lines[-1]} · {item}" if lines[-1] else item
        lines = [*lines[:-1], joined] if len(joined) <= width - len(indent) else [*lines, item]
    return textwrap.indent("\n".join(fold(line, width - len(indent)) for line in lines if line), indent)


def _total(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + len(_GAP) * (len(widths) - 1)


def _widths(rows: Sequence[Cells]) -> list[int]:
    """Return the width of each column."""
    return [max(map(len, column)) for column in zip(*rows, strict=True)]
