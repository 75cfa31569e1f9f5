"""Progress of one run, with the time left: a live bar on a terminal, otherwise one line per epoch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from contrapose.lab.cli.progress import format_duration
from contrapose.lab.training import Progress

_SETTLED = (
    5.0  # seconds of training before the time left is announced, because the first steps are slower than the others
)


@dataclass
class TimeLeft:
    """Estimates the seconds left from the steps taken by this process, so a resumed run ignores the steps before it resumed."""

    first: tuple[int, float] | None = None  # number and end time of the first step, whose own duration is not counted

    def __call__(self, progress: Progress) -> float:
        """Return the estimated seconds for the remaining steps; infinite before the second step."""
        now = time.monotonic()
        if self.first is None:
            self.first = progress.step, now
        steps, seconds = progress.step - self.first[0], now - self.first[1]
        return seconds / steps * (progress.steps - progress.step) if steps else float("inf")


@dataclass
class TrainingDisplay:
    """Functions that display the progress of training: steps, evaluations and lines of text."""

    show: Callable[[Progress, float], None] = lambda progress, left: None  # a step, and the seconds left
    show_evaluation: Callable[[], None] = lambda: None
    print_line: Callable[[str], None] = lambda text: None
    on_estimate: Callable[[float], None] = lambda seconds: None  # called once, with the seconds left
    _left: TimeLeft = field(default_factory=TimeLeft)
    _announced: bool = False

    def show_step(self, progress: Progress) -> None:
        """Show a step; announce the time left as soon as it can be estimated."""
        left = self._left(progress)
        self.show(progress, left)
        if not self._announced and self._left.first is not None:
            steps = progress.step - self._left.first[0]
            if steps >= 3 and time.monotonic() - self._left.first[1] >= _SETTLED:
                self._announced = True
                self.on_estimate(left)


@contextmanager
def training_display(*, noun: str = "images", silent: bool = False) -> Iterator[TrainingDisplay]:
    """Yield a display that suits the output: a live bar on a terminal, otherwise one line per epoch; nothing if silent.

    `noun` is the word for samples, such as "images".
    """
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(highlight=False, markup=False)  # a path may have square brackets
    if silent:
        yield TrainingDisplay()
        return
    if not console.is_terminal:
        yield TrainingDisplay(_epoch_lines(noun), print_line=lambda text: print(text, flush=True))
        return
    columns = (TextColumn("epoch {task.fields[epoch]}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"),
               TextColumn("{task.fields[detail]}"), TimeRemainingColumn())  # fmt: skip
    bar = Bar(*columns, console=console)
    task = bar.add_task("train", epoch=0, detail="", total=None)

    def show(p: Progress, left: float) -> None:
        bar.start()  # only at the first step, because reading the images shows its own bar
        detail = f"loss {p.loss:.3f} {p.images_per_second:,.0f} {noun}/s"
        bar.update(task, completed=p.step, total=p.steps, epoch=p.epoch, detail=detail)

    try:
        yield TrainingDisplay(show, lambda: bar.update(task, detail="evaluating", refresh=True), console.print)
    finally:
        bar.stop()


def _epoch_lines(noun: str) -> Callable[[Progress, float], None]:
    """Return a function that prints a line after each epoch."""
    steps: list[Progress] = []  # of the current epoch
    left = float("inf")

    def print_epoch() -> None:
        last, loss = steps[-1], sum(p.loss for p in steps) / len(steps)
        rest = f"   about {format_duration(left)} left" if 0 < left < float("inf") else ""
        print(f"epoch {last.epoch:4}   loss {loss:.3f}   {last.images_per_second:,.0f} {noun}/s{rest}", flush=True)
        steps.clear()

    def show(p: Progress, seconds_left: float) -> None:
        nonlocal left
        # An epoch is printed when the next epoch's first step arrives; the last epoch, when the last step arrives.
        if steps and steps[-1].epoch != p.epoch:
            print_epoch()
        steps.append(p)
        left = seconds_left
        if p.step == p.steps:
            print_epoch()

    return show
