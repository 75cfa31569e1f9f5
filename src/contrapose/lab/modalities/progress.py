"""A progress bar for long work on data, or lines where stderr is not a terminal.

The command line enables it; the library shows no progress by default.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

_DELAY = 1.0  # seconds before a bar appears, so that short work leaves the terminal unchanged
LINE_INTERVAL = 30.0  # seconds between lines where the output is not a terminal
_allowed = ContextVar("allowed", default=False)


@contextmanager
def allow_progress_bars() -> Iterator[None]:
    """Show a progress bar on stderr for long work on data in this block; a line every 30 seconds if it is not a terminal."""
    # Not the default, since a study's runs share one terminal, and the study has its own display.
    token = _allowed.set(True)
    try:
        yield
    finally:
        _allowed.reset(token)


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Hide other progress bars in this block, which has its own: a terminal can show only one at a time."""
    token = _allowed.set(False)
    try:
        yield
    finally:
        _allowed.reset(token)


@contextmanager
def progress_bar(description: str, total: int) -> Iterator[Callable[[], None]]:
    """Yield a function to call after each of `total` items."""
    if not _allowed.get():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _line_printer(description, total)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True)
    task, started = bar.add_task(description, total=total), time.monotonic()

    def advance() -> None:
        bar.advance(task)
        if time.monotonic() - started > _DELAY:
            bar.start()

    try:
        yield advance
    finally:
        bar.stop()


def _line_printer(description: str, total: int) -> Callable[[], None]:
    """Return a function to call after each of `total` items, which prints a line every `LINE_INTERVAL` seconds."""
    done, printed = 0, time.monotonic()

    def advance() -> None:
        nonlocal done, printed
        done += 1
        if time.monotonic() - printed >= LINE_INTERVAL:
            printed = time.monotonic()
            with suppress(OSError):  # stderr may be closed
                print(f"{description}: {done:,} of {total:,}", file=sys.stderr, flush=True)

    return advance
