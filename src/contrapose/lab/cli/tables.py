"""Tables in a terminal: as wide as the terminal, or as wide as needed if the output goes to a file or a program."""

from __future__ import annotations

from collections.abc import Sequence


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows of cells below their headings."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)  # a path may have square brackets
    if not console.is_terminal:
        widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
        for row in (headings, *rows):
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, overflow="fold")  # by default, the end of a long name is cut off
    for row in rows:
        table.add_row(*row)
    with console.capture() as captured:  # printed by `print`, because rich exits the process if the output is closed
        console.print(table)
    print(captured.get(), end="")
