"""Progress of one run, with the time left: a live bar on a terminal, otherwise lines after each epoch and every 30 seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from contrapose.lab.cli.progress import format_duration
from contrapose.lab.modalities.progress import LINE_INTERVAL
from contrapose.lab.training import Progress

_SETTLED = (
    5.0  # seconds of training before the time left is announced, because the first steps are slower than the others
)
_INTERRUPTED = 10.0  # steps that take so many times as long as usual were interrupted, as by a compilation


@dataclass
class TimeLeft:
    """Estimates the seconds left from the steps taken by this process, so a resumed run ignores the steps before it resumed."""

    first: tuple[int, float] | None = None  # number and end time of the first step, whose own duration is not counted
    evaluations: int = 0
    _last: tuple[int, float] = (0, 0.0)  # number and end time of the last step
    _evaluation: float | None = None  # when an evaluation began after the last step

    def begin_evaluation(self) -> None:
        """Leave out the time of the first evaluation, which takes longer than the others, until the next step."""
        self.evaluations += 1
        self._evaluation = time.monotonic()

    def __call__(self, progress: Progress) -> float:
        """Return the estimated seconds for the remaining steps; infinite before the second step."""
        now = time.monotonic()
        self.first = self.first or (progress.step, now)
        self.first = self.first[0], self.first[1] + self._interruption(progress.step, now)
        self._last, self._evaluation = (progress.step, now), None
        steps, seconds = progress.step - self.first[0], now - self.first[1]
        return seconds / steps * (progress.steps - progress.step) if steps else float("inf")

    def _interruption(self, step: int, now: float) -> float:
        """Return the seconds since the last step that happen only once: the first evaluation, or a compilation."""
        if self._evaluation is not None:
            return now - self._evaluation if self.evaluations == 1 else 0.0
        last_step, last = self._last
        if self.first is None or last_step <= self.first[0]:
            return 0.0
        usual = (last - self.first[1]) / (last_step - self.first[0]) * (step - last_step)
        return now - last - usual if now - last > max(_SETTLED, _INTERRUPTED * usual) else 0.0


@dataclass
class TrainingDisplay:
    """Functions that display the progress of training: steps, evaluations and lines of text."""

    show: Callable[[Progress, float, str], None] = lambda progress, left, noun: None  # a step, the seconds left, `noun`
    show_evaluation: Callable[[], None] = lambda: None
    print_line: Callable[[str], None] = lambda text: None
    on_estimate: Callable[[float], None] = lambda seconds: None  # called once, with the seconds left
    noun: str = "images"  # what samples are called
    _left: TimeLeft = field(default_factory=TimeLeft)
    _announced: bool = False

    def begin_evaluation(self) -> None:
        """Show that the encoder is evaluated."""
        self._left.begin_evaluation()
        self.show_evaluation()

    def show_step(self, progress: Progress) -> None:
        """Show a step; announce the time left as soon as it can be estimated, unless training is about to end."""
        left = self._left(progress)
        self.show(progress, left, self.noun)
        if not self._announced and self._left.first is not None:
            steps = progress.step - self._left.first[0]
            if steps >= 3 and time.monotonic() - self._left.first[1] >= _SETTLED:
                self._announced = True
                if left >= _SETTLED:
                    self.on_estimate(left)


@contextmanager
def training_display(*, silent: bool = False) -> Iterator[TrainingDisplay]:
    """Yield a display that suits the output: a live bar on a terminal, otherwise lines; nothing if silent."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(highlight=False, markup=False)  # a path may have square brackets
    if silent:
        yield TrainingDisplay()
        return
    if not console.is_terminal:
        lines = _Lines()
        yield TrainingDisplay(lines.show, lines.show_evaluation, lambda text: print(text, flush=True))
        return
    columns = (TextColumn("epoch {task.fields[epoch]}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"),
               TextColumn("{task.fields[detail]}"), TimeRemainingColumn())  # fmt: skip
    bar = Bar(*columns, console=console)
    task = bar.add_task("train", epoch=0, detail="", total=None)

    def show(p: Progress, left: float, noun: str) -> None:
        bar.start()  # only at the first step, because reading the images shows its own bar
        detail = f"loss {p.loss:.3f} {p.images_per_second:,.0f} {noun}/s"
        bar.update(task, completed=p.step, total=p.steps, epoch=p.epoch, detail=detail)

    try:
        yield TrainingDisplay(show, lambda: bar.update(task, detail="evaluating", refresh=True), console.print)
    finally:
        bar.stop()


class _Lines:
    """Prints a line after each epoch, every 30 seconds within an epoch, and before an evaluation that may take as long."""

    def __init__(self) -> None:
        self.steps: list[Progress] = []  # of the current epoch
        self.rest = self.noun = ""
        self.printed = self.began = time.monotonic()  # time of the last line, and of the begin of the current epoch

    def show(self, p: Progress, left: float, noun: str) -> None:
        """Show a step."""
        # An epoch is printed when the next epoch's first step arrives; the last epoch, when the last step arrives.
        if self.steps and self.steps[-1].epoch != p.epoch:
            self._print_epoch()
        self.steps.append(p)
        self.noun = noun
        self.rest = f"   about {format_duration(left)} left" if 0 < left < float("inf") else ""
        if p.step == p.steps:
            self._print_epoch()
        elif time.monotonic() - self.printed >= LINE_INTERVAL:
            self._print(f"step {p.step:,} of {p.steps:,}, epoch {p.epoch}", p.loss)

    def show_evaluation(self) -> None:
        """Print the epoch that has ended; say that the encoder is evaluated if the epoch took long."""
        slow, epoch = time.monotonic() - self.began >= LINE_INTERVAL, self.steps[-1].epoch if self.steps else 0
        if self.steps:
            self._print_epoch()
        if slow:
            print(f"evaluating after epoch {epoch}" if epoch else "evaluating", flush=True)

    def _print_epoch(self) -> None:
        mean = sum(p.loss for p in self.steps) / len(self.steps)
        self._print(f"epoch {self.steps[-1].epoch:4}", mean)
        self.steps.clear()
        self.began = self.printed

    def _print(self, position: str, loss: float) -> None:
        rate = self.steps[-1].images_per_second
        print(f"{position}   loss {loss:.3f}   {rate:,.0f} {self.noun}/s{self.rest}", flush=True)
        self.printed = time.monotonic()
