"""Execute the runs of studies: in this process, in several processes, or on a Ray cluster."""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace

from contrapose.studies.elsewhere import in_processes, on_ray
from contrapose.studies.task import BUSY, Task, Watch, performing
from contrapose.training import Stopped, signals
from contrapose.training.processes import own_device

Work = tuple[Task, Generator[None, None, str]]
_ON_A_GPU = 2  # concurrent jobs; a third one gives no more throughput, as measured in benchmarks/README.md


def perform_all(
    tasks: Sequence[Task], watch: Watch | None = None, *, jobs: int | None = None, on: str = "local"
) -> dict[str, str]:
    """Execute tasks, `jobs` at a time, on this machine or a Ray cluster. Tasks that are done are skipped.

    On a CPU each job is a process, by default one. On a GPU jobs take turns in this process, by default two: one has kernels
    queued while the other works on the host.

    Returns:
        Why each failed task failed, by name.
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
        return on_ray(open_tasks, watch)
    if own_device().type == "cuda":
        return _here(open_tasks, watch, jobs or _ON_A_GPU)
    if jobs in (None, 1):
        return _here(open_tasks, watch, 1)
    timed = [task for task in open_tasks if task.timed]
    others = [task for task in open_tasks if not task.timed]
    return in_processes(others, watch, jobs) | _here(timed, watch, 1)


def _merged(tasks: Sequence[Task]) -> list[Task]:
    """Merge tasks of the same run into one that measures everything."""
    found: dict[str, Task] = {}
    for task in tasks:
        old = found.get(task.name)
        measures = tuple(dict.fromkeys((old.measures if old else ()) + task.measures))
        found[task.name] = Task(task.run, measures, task.root, task.data_root)
    return list(found.values())


def _here(tasks: Sequence[Task], watch: Watch, at_once: int) -> dict[str, str]:
    """Execute tasks in this process, `at_once` of them taking turns.

    Runs that another process is working on, or that do not fit into memory together with others, come at the end.
    """
    failures: dict[str, str] = {}
    later, together = [task for task in tasks if task.timed], [task for task in tasks if not task.timed]
    with signals() as requests:
        for some, turns in ((together, at_once), (later, 1)):
            alike = [replace(task, concurrent_runs=min(turns, len(some)) - 1) for task in some]
            works = [(task, performing(task, watch.stepped, requests, patient=some is later)) for task in alike]
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


def _in_turns(works: list[Work], at_once: int) -> Iterator[tuple[Task, str]]:
    """Yield each task and its result as it ends. A signal stops all that are running, and no other one starts."""
    waiting: list[Work] = list(works)
    running: list[Work] = []
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
                    gc.collect()  # reference cycles of a finished run keep GPU memory until then
                    yield task, end.value
                except Stopped as error:
                    running.remove((task, work))
                    stopped = stopped or error
    finally:
        for _, work in running:
            work.close()
    if stopped is not None:
        raise stopped
