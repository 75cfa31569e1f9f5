"""Train and evaluate a study's run exactly once, even if studies share the run, or processes are killed or race.

The files in the run's directory show what has been done: records up to the last epoch, evaluations.json, or failure.json.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from contrapose.lab.studies.measures import Context, Evaluation, Measure, StepSeconds
from contrapose.lab.studies.run_directory import RunDirectory
from contrapose.lab.training import Progress, Run, Trainer, drain, signals
from contrapose.lab.training.locks import lock_directory
from contrapose.lab.training.records.files import WriteFailed, write_json_atomically
from contrapose.lab.training.stops import StopRequests, ignore_closed_output
from contrapose.lab.training.threads import fixed_threads
from contrapose.lab.workers import worker_failures

BUSY = "busy"
StepCallback = Callable[[str, Progress], None]  # called with the name of the run


@dataclass(frozen=True)
class Task:
    """A run, the measures to compute for it, and the directory that contains all runs."""

    run: Run
    measures: tuple[Measure, ...]
    root: Path
    data_root: Path | None = None
    concurrent_runs: int = 0  # other runs that share the device
    downstream: Mapping[str, str] = field(default_factory=dict)  # paths of the measures' downstream data, keyed by name

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
        """Return whether the run's speed is measured, so that it must have its device to itself."""
        return StepSeconds() in self.measures

    def done(self) -> bool:
        """Return whether the run has finished training and all measures are computed."""
        return RunDirectory(self.folder).trained(self.run.epochs) and not self.open_measures()

    def open_measures(self) -> list[Evaluation]:
        """Return the measures that are still to be evaluated."""
        directory = RunDirectory(self.folder)
        # A run may have recorded the measure with its last epoch.
        recorded = next(iter(directory.records()[-1:]), {})
        candidates = [m for m in self.measures if isinstance(m, Evaluation) and m.key not in recorded]
        return [measure for measure in candidates if not measure.is_taken(directory, self.downstream)]


def run_task(task: Task, on_step: StepCallback | None = None, *, wait: bool = True) -> str:
    """Train and evaluate the run, except for what has already been done.

    Returns:
        "" on success, the reason for a failure, or BUSY if another process works on the run and `wait` is False.
    """
    with signals() as requests:
        return drain(task_steps(task, on_step, requests, wait=wait))


def task_steps(
    task: Task, on_step: StepCallback | None, requests: StopRequests, *, wait: bool
) -> Generator[None, None, str]:
    """Do the work of `run_task` step by step, as a generator like `Trainer.training`, so that several tasks can take turns."""
    with lock_directory(task.folder, requests, wait=wait) as acquired:
        if not acquired:
            return BUSY
        # Checked only under the lock: another process may have finished the run while this one waited.
        if task.done():
            return ""
        failure = task.folder / "failure.json"
        try:
            with worker_failures():
                yield from _train_and_evaluate(task, on_step, requests)
        except WriteFailed:  # a full disk also affects the other runs, and failure.json could not be written
            raise
        except Exception as error:  # one run that fails must not stop the others; the report shows the reason
            task.folder.mkdir(parents=True, exist_ok=True)
            # The message of a ValueError is written for users; for other errors, the type is part of the explanation.
            reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            write_json_atomically(failure, {"why": reason})
            return reason
        failure.unlink(missing_ok=True)
        return "" if task.done() else "the run ended without its last record"


def _train_and_evaluate(
    task: Task, on_step: StepCallback | None, requests: StopRequests
) -> Generator[None, None, None]:
    report = (lambda progress: on_step(task.name, progress)) if on_step is not None else (lambda progress: None)
    with requests.immediate():
        trainer = Trainer(
            task.run,
            task.folder,
            on_step=report,
            log=lambda text: None,
            data_root=task.data_root,
            concurrent_runs=task.concurrent_runs,
        )
        # Complete records are not enough: evaluations need the last checkpoint, which may be missing or damaged.
        trained = RunDirectory(task.folder).trained(task.run.epochs) and trainer.load_latest() and trainer.complete
    if not trained:
        yield from trainer.training(requests)
    for measure in task.open_measures():
        directory = RunDirectory(task.folder)
        if not measure.is_taken(
            directory, task.downstream
        ):  # an earlier evaluation may also have computed this measure
            with requests.immediate(), fixed_threads(trainer.threads):
                values = measure.take(Context(trainer.model, trainer.split, task.downstream, task.data_root))
            evaluations = directory.evaluations()
            write_json_atomically(task.folder / "evaluations.json", evaluations | values)
            yield


@dataclass
class ProgressDisplay:
    """Callbacks of a progress display, for every step and for every run that ends or is skipped."""

    on_step: StepCallback = lambda name, progress: None
    on_end: Callable[[str, str], None] = lambda name, failure: None  # `failure` is empty on success
    on_skip: Callable[[str], None] = lambda name: None  # the run was already done
    step_interval: float = 0.2  # seconds
    _last_reports: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A reader that closes the pipe, as `head` does, must not stop hours of training.
        self.on_step = ignore_closed_output(self.on_step)
        self.on_end = ignore_closed_output(self.on_end)
        self.on_skip = ignore_closed_output(self.on_skip)

    def report_step(self, name: str, progress: Progress) -> None:
        """Report a step, at most every `step_interval` seconds; the last step is always reported."""
        now = time.monotonic()
        if progress.step == progress.steps or now - self._last_reports.get(name, 0.0) > self.step_interval:
            self._last_reports[name] = now
            self.on_step(name, progress)
