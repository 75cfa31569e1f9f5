"""Doing the runs of studies: each once, however many studies want it, whoever is killed, and however many start at once.

A run's directory says what is done: records to the last epoch, evaluations.json, or failure.json. A lock file beside it, held
by whoever works on it, is released by the system when that process ends, also when it is killed.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from contrapose.data.stream import worker_deaths
from contrapose.studies.measures import evaluate, is_evaluation
from contrapose.studies.results import Left
from contrapose.training import Progress, Run, Stopped, Trainer, drain, signals
from contrapose.training.processes import own_device
from contrapose.training.records import write_whole
from contrapose.training.stops import Asked

BUSY = "busy"
_ON_A_GPU = 2  # jobs at once: measured, in benchmarks/README.md; a third gives no more


@dataclass(frozen=True)
class Task:
    """A run, what is measured of it, and where it lives."""

    run: Run
    measures: tuple[str, ...]
    root: Path
    data_root: Path | None = None

    @property
    def name(self) -> str:
        """The run's name."""
        return self.run.name

    @property
    def folder(self) -> Path:
        """The run's directory."""
        return self.root / self.name

    def done(self) -> bool:
        """Whether it is trained and everything is measured."""
        left = Left(self.folder)
        return left.trained(self.run.epochs) and not self.open_measures()

    def open_measures(self) -> list[str]:
        """What is still to be evaluated."""
        there = Left(self.folder).evaluations()
        return [measure for measure in self.measures if is_evaluation(measure) and measure not in there]


def perform(task: Task, watch: Callable[[str, Progress], None] | None = None, *, patient: bool = True) -> str:
    """Do what is left of a task. Gives "" when it is done, why it failed, or BUSY where another process has it."""
    with signals() as asked:
        return drain(_performing(task, watch, asked, patient=patient))


def _performing(
    task: Task, watch: Callable[[str, Progress], None] | None, asked: Asked, *, patient: bool
) -> Generator[None, None, str]:
    """The same in parts, as `Trainer.training` has them."""
    with _locked(task.root, task.name, asked, patient) as mine:
        if not mine:
            return BUSY
        if task.done():
            return ""
        failure = task.folder / "failure.json"
        try:
            with worker_deaths():
                yield from _work(task, watch, asked)
        except Stopped:
            raise
        except Exception as error:  # whatever it is, the other runs go on, and the report says it
            task.folder.mkdir(parents=True, exist_ok=True)
            why = f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else str(error)
            write_whole(failure, {"why": why})
            return why
        failure.unlink(missing_ok=True)
        return "" if task.done() else "it ended without its last record"


def _work(task: Task, watch: Callable[[str, Progress], None] | None, asked: Asked) -> Generator[None, None, None]:
    see = (lambda progress: watch(task.name, progress)) if watch is not None else (lambda progress: None)
    with asked.at_once():
        trainer = Trainer(task.run, task.folder, see, lambda text: None, task.data_root)
        trained = Left(task.folder).trained(task.run.epochs) and trainer.load_latest()
    if not trained:
        yield from trainer.training(asked)
    for measure in task.open_measures():
        there = Left(task.folder).evaluations()
        if measure not in there:  # one evaluation may have given several
            with asked.at_once():
                found = evaluate(trainer, measure)
            write_whole(task.folder / "evaluations.json", there | found)
            yield


@contextmanager
def _locked(root: Path, name: str, asked: Asked, patient: bool) -> Iterator[bool]:
    root.mkdir(parents=True, exist_ok=True)
    with (root / f"{name}.lock").open("w") as file:
        try:
            with asked.at_once():
                fcntl.flock(file, fcntl.LOCK_EX | (0 if patient else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


@dataclass
class Watch:
    """Whoever looks on: told of every step and of every run that ends."""

    step: Callable[[str, Progress], None] = lambda name, progress: None
    ended: Callable[[str, str], None] = lambda name, why: None
    skipped: Callable[[str], None] = lambda name: None  # it was done before
    steps_every: float = 0.2
    _told: dict[str, float] = field(default_factory=dict)

    def stepped(self, name: str, progress: Progress) -> None:
        """Pass a step on, not too often."""
        now = time.monotonic()
        if progress.step == progress.steps or now - self._told.get(name, 0.0) > self.steps_every:
            self._told[name] = now
            with suppress(OSError):  # a display that is gone, such as a closed pipe, stops no run
                self.step(name, progress)


def perform_all(
    tasks: Sequence[Task], watch: Watch | None = None, *, jobs: int | None = None, on: str = "local"
) -> dict[str, str]:
    """All tasks, `jobs` at once, here or on a Ray cluster; why each failed, by name. What is done is not done again.

    On a CPU each job is a process; without a number, one. On a GPU jobs take turns in this process, so that one has work queued
    while another is busy with the host, and their kernels overlap; without a number, two.
    """
    watch = watch or Watch()
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs: expected at least 1, got {jobs}")
    if on not in ("local", "ray"):
        raise ValueError(f"on: expected local or ray, got {on!r}")
    unique = {task.name: task for task in _merged(tasks)}
    open_tasks = []
    for task in unique.values():
        if task.done():
            watch.skipped(task.name)
        else:
            open_tasks.append(task)
    if not open_tasks:
        return {}
    if on == "ray":
        return _on_ray(open_tasks, watch)
    if own_device().type == "cuda":
        return _here(open_tasks, watch, jobs or _ON_A_GPU)
    return _here(open_tasks, watch, 1) if jobs in (None, 1) else _in_processes(open_tasks, watch, jobs)


def _merged(tasks: Sequence[Task]) -> list[Task]:
    """Tasks of the same run become one that measures everything."""
    found: dict[str, Task] = {}
    for task in tasks:
        old = found.get(task.name)
        measures = tuple(dict.fromkeys((old.measures if old else ()) + task.measures))
        found[task.name] = Task(task.run, measures, task.root, task.data_root)
    return list(found.values())


def _here(tasks: Sequence[Task], watch: Watch, at_once: int) -> dict[str, str]:
    """In this process, `at_once` in turns. What another process works on, or finds no room beside others, comes at the end."""
    failures: dict[str, str] = {}
    later = [task for task in tasks if "step_seconds" in task.measures]  # beside another run, time says nothing
    together = [task for task in tasks if task not in later]
    with signals() as asked:
        for some, turns in ((together, at_once), (later, 1)):
            works = [(task, _performing(task, watch.stepped, asked, patient=some is later)) for task in some]
            for task, why in _in_turns(works, turns):
                if some is together and (why == BUSY or (turns > 1 and _no_room(why))):
                    (task.folder / "failure.json").unlink(missing_ok=True)
                    later.append(task)
                    continue
                watch.ended(task.name, why)
                failures |= {task.name: why} if why else {}
    return failures


def _no_room(why: str) -> bool:
    return "out of memory" in why.lower() or "alloc_failed" in why.lower()


def _in_turns(works: list[tuple[Task, Generator[None, None, str]]], at_once: int) -> Iterator[tuple[Task, str]]:
    """What each gives, as they end. Where one is stopped by a signal the others are too, and nothing new begins."""
    waiting, running = list(works), list(works[:0])
    stopped: Stopped | None = None
    try:
        while running or (waiting and stopped is None):
            while waiting and stopped is None and len(running) < at_once:
                running.append(waiting.pop(0))
            for task, work in list(running):
                try:
                    next(work)
                    continue
                except StopIteration as end:
                    running.remove((task, work))
                    gc.collect()  # a run that is over holds a GPU's memory until then
                    yield task, end.value
                except Stopped as error:
                    running.remove((task, work))
                    stopped = stopped or error
    finally:
        for _, work in running:
            work.close()
    if stopped is not None:
        raise stopped


def _in_processes(tasks: Sequence[Task], watch: Watch, jobs: int) -> dict[str, str]:
    """Some at once. A process that is killed takes its pool with it: what is not done goes to another pool, twice at most."""
    failures: dict[str, str] = {}
    for _ in range(3):
        with signals() as asked:
            lost = _in_one_pool(tasks, watch, jobs, failures, asked)
        tasks = [task for task in tasks if task.name in lost]
        if not tasks:
            return failures
    for task in tasks:
        failures[task.name] = "its process was killed three times"
        watch.ended(task.name, failures[task.name])
    return failures


def _in_one_pool(tasks: Sequence[Task], watch: Watch, jobs: int, failures: dict[str, str], asked: Asked) -> set[str]:
    """The names of those that were lost with a killed process."""
    context, lost = get_context("spawn"), set()
    with context.Manager() as manager:
        told, stop, workers = manager.Queue(), manager.Event(), min(jobs, len(tasks))
        with ProcessPoolExecutor(workers, mp_context=context, initializer=_share, initargs=(workers,)) as pool:
            running = {pool.submit(_reported, task, told, stop): task.name for task in tasks}
            try:
                while running:
                    if asked:
                        raise asked.stopped()
                    ended, _ = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
                    while not told.empty():
                        watch.step(*told.get())
                    for future in ended:
                        name, error = running.pop(future), future.exception()
                        if isinstance(error, BrokenProcessPool):
                            lost.add(name)
                            continue
                        why = future.result()
                        watch.ended(name, why)
                        failures |= {name: why} if why else {}
            except BaseException:  # a signal: those at work save and stop, the others do not begin
                stop.set()
                for worker in list(pool._processes):
                    with suppress(ProcessLookupError):
                        os.kill(worker, signal.SIGTERM)
                pool.shutdown(wait=True, cancel_futures=True)
                raise
    return lost


def _share(workers: int) -> None:
    """Each process takes its share of the cores, and ends with the one that started it."""
    import torch

    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _reported(task: Task, told: Any, stop: Any) -> str:
    if stop.is_set():
        raise Stopped(f"{task.name} did not begin")
    return perform(task, Watch(step=lambda name, progress: told.put((name, progress))).stepped)


def _on_ray(tasks: Sequence[Task], watch: Watch) -> dict[str, str]:
    """A task for each run, wherever the cluster has room; all nodes must see this directory under the same path."""
    try:
        import ray
    except ImportError as error:
        raise ValueError("on: a Ray cluster needs: pip install 'contrapose[cluster]'") from error
    if not ray.is_initialized():
        try:
            ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), log_to_driver=False)
        except ConnectionError as error:
            raise ValueError("on: there is no Ray cluster here; start one with `ray start --head`") from error
    gpus = 1 if ray.cluster_resources().get("GPU", 0) else 0
    remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=2)(_from_here)
    running = {remote.remote(task, str(Path.cwd())): task for task in tasks}
    failures: dict[str, str] = {}
    while running:
        ended, _ = ray.wait(list(running), num_returns=1)
        for reference in ended:
            task = running.pop(reference)
            try:
                why = ray.get(reference)
            except ray.exceptions.RayError as error:
                why = f"its node or process was lost: {str(error).splitlines()[0]}"
            if not why and not task.done():
                why = f"its node does not see {task.folder.resolve()}"
            watch.ended(task.name, why)
            failures |= {task.name: why} if why else {}
    return failures


def _from_here(task: Task, place: str) -> str:
    """On another node, with the paths that the driver has."""
    os.makedirs(place, exist_ok=True)
    os.chdir(place)
    return perform(task)
