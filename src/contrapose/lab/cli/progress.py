"""Progress of many runs: bars on a terminal, otherwise a line whenever a run ends, and every 30 seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from contrapose.lab.counts import count_of
from contrapose.lab.modalities.progress import LINE_INTERVAL
from contrapose.lab.studies.task import ProgressDisplay
from contrapose.lab.training import Progress


@contextmanager
def progress_display(runs: int) -> Iterator[ProgressDisplay]:
    """Show the overall progress and the progress of each running run, with an estimate of the time left."""
    from rich.console import Console
    from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    console, started = Console(highlight=False), time.monotonic()
    if not console.is_terminal:
        yield _line_display(runs, started)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"),
               TextColumn("{task.fields[detail]}"), TimeElapsedColumn())  # fmt: skip
    with Bars(*columns, console=console) as bars:
        total_bar = bars.add_task(count_of(runs, "run"), total=runs, detail="")
        run_bars: dict[str, TaskID] = {}
        fractions: dict[str, float] = {}  # completed fraction of each running run
        ended = 0

        def time_left() -> str:
            done = ended + sum(fractions.values())
            elapsed = time.monotonic() - started
            # Before the first steps are done, the estimate would be dominated by start-up and compilation.
            return f"about {format_duration(elapsed / done * (runs - done))} left" if done > 0.05 else ""

        def show_step(name: str, progress: Progress) -> None:
            if name not in run_bars:
                run_bars[name] = bars.add_task(f"  {name}", total=progress.steps, detail="")
            fractions[name] = progress.step / progress.steps
            detail = f"epoch {progress.epoch}, loss {progress.loss:.3f}"
            bars.update(run_bars[name], completed=progress.step, detail=detail)
            bars.update(total_bar, completed=ended + sum(fractions.values()), detail=time_left())

        def show_end(name: str, failure: str) -> None:
            nonlocal ended
            ended += 1
            fractions.pop(name, None)
            if name in run_bars:
                bars.remove_task(run_bars.pop(name))
            if failure:
                bars.console.print(f"{name} failed: {failure}")
            bars.update(total_bar, completed=ended + sum(fractions.values()), detail=time_left())

        def skip(name: str) -> None:
            # A skipped run takes no time, so counting it as done would make the estimate too optimistic.
            nonlocal runs
            runs -= 1
            bars.update(total_bar, total=runs, description=count_of(runs, "run"))

        yield ProgressDisplay(on_step=show_step, on_end=show_end, on_skip=skip)


def _line_display(runs: int, started: float) -> ProgressDisplay:
    ended, printed = 0, started
    first: tuple[float, float] | None = None  # when the first step was reported, and how many runs were done then

    def skip(name: str) -> None:
        nonlocal runs
        runs -= 1

    def show_step(name: str, progress: Progress) -> None:
        nonlocal printed, first
        # The other running runs are assumed to be as far: they started at about the same time.
        done = ended + progress.step / progress.steps
        first = first or (time.monotonic(), done)
        if time.monotonic() - printed < LINE_INTERVAL:
            return
        printed = time.monotonic()
        # From the first step on: what comes before it, such as compilation, happens once.
        elapsed, steps_done = printed - first[0], done - first[1]
        left = f"; about {format_duration(elapsed / steps_done * (runs - done))} left" if steps_done > 0.02 else ""
        where = f"step {progress.step:,} of {progress.steps:,}, loss {progress.loss:.3f}"
        print(f"{ended} of {count_of(runs, 'run')} done; {name}: {where}{left}", flush=True)

    def show_end(name: str, failure: str) -> None:
        nonlocal ended, printed
        ended, printed = ended + 1, time.monotonic()
        since, done_then = first or (started, 0.0)
        seconds = (printed - since) / max(0.02, ended - done_then)
        left = f", about {format_duration(seconds * (runs - ended))} left" if ended < runs else ""
        print(f"{ended} of {runs}: {name} {f'failed: {failure}' if failure else 'done'}{left}", flush=True)

    return ProgressDisplay(on_step=show_step, on_end=show_end, on_skip=skip)


def format_duration(seconds: float) -> str:
    """Return a duration as text, such as "12 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
