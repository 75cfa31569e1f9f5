"""Train and measure one run of a study, exactly once: several studies may share it, and processes may be killed or race.

The run's directory says what is done: records to the last epoch, evaluations.json, or failure.json.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path

from contrapose.studies.measures import evaluate, is_evaluation
from contrapose.studies.results import RunDirectory
from contrapose.training import Progress, Run, Stopped, Trainer, drain, signals
from contrapose.training.locks import locked
from contrapose.training.records import write_whole
from contrapose.training.stops import StopRequests, ignore_closed_output
from contrapose.workers import worker_failures

BUSY = "busy"


@dataclass(frozen=True)
class Task:
    """A run, what is measured of it, and the directory of runs."""

    run: Run
    measures: tuple[str, ...]
    root: Path
    data_root: Path | None = None
    concurrent_runs: int = 0  # other runs on the same device meanwhile

    @property
    def name(self) -> str:
        """Return the name of the run."""
        return self.run.name

    @property
    def folder(self) -> Path:
        """Return the directory of the run."""
        return self.root / self.name

    @property
    def timed(self) -> bool:
        """Return whether its speed is measured, so that it must not share its device with another run."""
        return "step_seconds" in self.measures

    def done(self) -> bool:
        """Return whether the run is trained and everything is measured."""
        return RunDirectory(self.folder).trained(self.run.epochs) and not self.open_measures()

    def open_measures(self) -> list[str]:
        """Return the measures that are still to be evaluated."""
        evaluations = RunDirectory(self.folder).evaluations()
        return [measure for measure in self.measures if is_evaluation(measure) and measure not in evaluations]


def perform(task: Task, watch: Callable[[str, Progress], None] | None = None, *, patient: bool = True) -> str:
    """Do what is left of a task. Gives "" when it is done, why it failed, or BUSY where another process has it."""
    with signals() as requests:
        return drain(performing(task, watch, requests, patient=patient))


def performing(
    task: Task, watch: Callable[[str, Progress], None] | None, requests: StopRequests, *, patient: bool
) -> Generator[None, None, str]:
    """The same in parts, as `Trainer.training` has them."""
    with locked(task.folder, requests, patient=patient) as mine:
        if not mine:
            return BUSY
        if task.done():
            return ""
        failure = task.folder / "failure.json"
        try:
            with worker_failures():
                yield from _work(task, watch, requests)
        except Stopped:
            raise
        except Exception as error:  # one run that fails must not stop the others; the report shows why
            task.folder.mkdir(parents=True, exist_ok=True)
            why = f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else str(error)
            write_whole(failure, {"why": why})
            return why
        failure.unlink(missing_ok=True)
        return "" if task.done() else "it ended without its last record"


def _work(
    task: Task, watch: Callable[[str, Progress], None] | None, requests: StopRequests
) -> Generator[None, None, None]:
    see = (lambda progress: watch(task.name, progress)) if watch is not None else (lambda progress: None)
    with requests.immediate():
        trainer = Trainer(
            task.run, task.folder, see, lambda text: None, task.data_root, concurrent_runs=task.concurrent_runs
        )
        trained = RunDirectory(task.folder).trained(task.run.epochs) and trainer.load_latest() and trainer.complete
    if not trained:
        yield from trainer.training(requests)
    for measure in task.open_measures():
        there = RunDirectory(task.folder).evaluations()
        if measure not in there:  # one evaluation may have given several
            with requests.immediate():
                found = evaluate(trainer.model, trainer.split, measure)
            write_whole(task.folder / "evaluations.json", there | found)
            yield


@dataclass
class Watch:
    """Callbacks of a progress display: for every step, and for every run that ends or is skipped."""

    step: Callable[[str, Progress], None] = lambda name, progress: None
    ended: Callable[[str, str], None] = lambda name, why: None
    skipped: Callable[[str], None] = lambda name: None  # the run was already done
    steps_every: float = 0.2
    _told: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.step, self.ended, self.skipped = (
            ignore_closed_output(self.step),
            ignore_closed_output(self.ended),
            ignore_closed_output(self.skipped),
        )

    def stepped(self, name: str, progress: Progress) -> None:
        """Report a step, at most every `steps_every` seconds."""
        now = time.monotonic()
        if progress.step == progress.steps or now - self._told.get(name, 0.0) > self.steps_every:
            self._told[name] = now
            self.step(name, progress)
