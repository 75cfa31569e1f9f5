"""How far many runs are: bars on a terminal, a line for each run elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from contrapose.studies.task import Watch
from contrapose.training import Progress


@contextmanager
def watching(runs: int) -> Iterator[Watch]:
    """A display of the whole and of each run that is at work, with the time left."""
    from rich.console import Console
    from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    console, started = Console(highlight=False), time.monotonic()
    if not console.is_terminal:
        yield _lines(runs, started)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"),
               TextColumn("{task.fields[said]}"), TimeElapsedColumn())  # fmt: skip
    with Bars(*columns, console=console) as bars:
        whole = bars.add_task(f"{runs} runs", total=runs, said="")
        rows: dict[str, TaskID] = {}
        shares: dict[str, float] = {}
        ended = 0

        def left() -> str:
            done = ended + sum(shares.values())
            passed = time.monotonic() - started
            return f"about {_clock(passed / done * (runs - done))} left" if done > 0.05 else ""

        def step(name: str, progress: Progress) -> None:
            if name not in rows:
                rows[name] = bars.add_task(f"  {name}", total=progress.steps, said="")
            shares[name] = progress.step / progress.steps
            said = f"epoch {progress.epoch}, loss {progress.loss:.3f}"
            bars.update(rows[name], completed=progress.step, said=said)
            bars.update(whole, completed=ended + sum(shares.values()), said=left())

        def end(name: str, why: str) -> None:
            nonlocal ended
            ended += 1
            shares.pop(name, None)
            if name in rows:
                bars.remove_task(rows.pop(name))
            if why:
                bars.console.print(f"{name} failed: {why}")
            bars.update(whole, completed=ended + sum(shares.values()), said=left())

        def skip(name: str) -> None:
            nonlocal runs
            runs -= 1
            bars.update(whole, total=runs, description=f"{runs} runs")

        yield Watch(step, end, skip)


def _lines(runs: int, started: float) -> Watch:
    ended: list[str] = []

    def skip(name: str) -> None:
        nonlocal runs
        runs -= 1

    def end(name: str, why: str) -> None:
        ended.append(name)
        passed = time.monotonic() - started
        left = f", about {_clock(passed / len(ended) * (runs - len(ended)))} left" if len(ended) < runs else ""
        print(f"{len(ended)} of {runs}: {name} {f'failed: {why}' if why else 'done'}{left}", flush=True)

    return Watch(ended=end, skipped=skip)


def _clock(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 90
        else f"{seconds / 60:.0f} min"
        if seconds < 5400
        else f"{seconds / 3600:.1f} h"
    )
