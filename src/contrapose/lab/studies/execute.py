"""Execute the runs of studies: in this process, in several processes, on a Ray cluster, or on Slurm."""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace

from contrapose.lab.devices import own_device
from contrapose.lab.jobs.description import check_executor
from contrapose.lab.studies.executors import run_in_jobs, run_in_processes, run_on_ray
from contrapose.lab.studies.task import BUSY, ProgressDisplay, Task, task_steps
from contrapose.lab.training import Stopped, signals

Job = tuple[Task, Generator[None, None, str]]
_JOBS_PER_GPU = 2  # a third run does not increase throughput, see benchmarks/README.md


def run_tasks(
    tasks: Sequence[Task], display: ProgressDisplay | None = None, *, jobs: int | None = None, executor: str = "local"
) -> dict[str, str]:
    """Execute tasks, `jobs` at a time, on this machine, a Ray cluster or Slurm. Finished tasks are skipped.

    On a CPU, each job is a process (default: one). On a GPU, jobs take turns in this process (default: two): while one works on
    the host, the GPU executes the kernels that the other has queued.

    Returns:
        The reason for each failure, keyed by task name.
    """
    display = display or ProgressDisplay()
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs: expected at least 1, got {jobs}")
    check_executor(executor, "local", "ray", "slurm:FILE")
    open_tasks = []
    for task in _merge_tasks(tasks):
        if task.done():
            display.on_skip(task.name)
        else:
            open_tasks.append(task)
    if not open_tasks:
        return {}
    if executor == "ray":
        return run_on_ray(open_tasks, display)
    if executor != "local":
        return run_in_jobs(open_tasks, display, executor, jobs)
    if own_device().type == "cuda":
        return _run_in_turns(open_tasks, display, jobs or _JOBS_PER_GPU)
    if jobs in (None, 1):
        return _run_in_turns(open_tasks, display, 1)
    # Timed runs start after the pool has finished: processes that share the cores would distort the step times.
    timed = [task for task in open_tasks if task.timed]
    untimed = [task for task in open_tasks if not task.timed]
    return run_in_processes(untimed, display, jobs) | _run_in_turns(timed, display, 1)


def _merge_tasks(tasks: Sequence[Task]) -> list[Task]:
    """Merge tasks for the same run into one task with all of their measures."""
    merged: dict[str, Task] = {}
    for task in tasks:
        earlier = merged.get(task.name)
        measures = tuple(dict.fromkeys((earlier.measures if earlier else ()) + task.measures))
        downstream = {**(earlier.downstream if earlier else {}), **task.downstream}
        merged[task.name] = replace(task, measures=measures, downstream=downstream)
    return list(merged.values())


def _run_in_turns(tasks: Sequence[Task], display: ProgressDisplay, jobs: int) -> dict[str, str]:
    """Execute tasks in this process, `jobs` of them taking turns; return the reason for each failure, keyed by task name.

    Three kinds of runs come last, one at a time: runs whose speed is measured, runs that another process is working on,
    and runs that ran out of memory while they shared the device.
    """
    failures: dict[str, str] = {}
    alone, shared = [task for task in tasks if task.timed], [task for task in tasks if not task.timed]
    with signals() as requests:
        # The second group grows while the first group runs, so it must not be read earlier.
        for group, turns in ((shared, jobs), (alone, 1)):
            group_tasks = [replace(task, concurrent_runs=min(turns, len(group)) - 1) for task in group]
            # Only the last group waits for other processes: before that there is other work to do.
            wait = group is alone
            queue = [(task, task_steps(task, display.report_step, requests, wait=wait)) for task in group_tasks]
            for task, failure in _take_turns(queue, turns):
                if group is shared and (failure == BUSY or (turns > 1 and _is_out_of_memory(failure))):
                    (task.folder / "failure.json").unlink(missing_ok=True)
                    alone.append(task)
                    continue
                display.on_end(task.name, failure)
                failures |= {task.name: failure} if failure else {}
    return failures


def _is_out_of_memory(failure: str) -> bool:
    # cuBLAS and cuDNN report a full device as CUBLAS_STATUS_ALLOC_FAILED and the like.
    return "out of memory" in failure.lower() or "alloc_failed" in failure.lower()


def _take_turns(queue: list[Job], jobs: int) -> Iterator[tuple[Task, str]]:
    """Yield each task with its result when the task ends. A signal stops all running tasks, and no further task starts."""
    waiting: list[Job] = list(queue)
    running: list[Job] = []
    stopped: Stopped | None = None
    try:
        # After a signal, the other tasks still get a turn, in which each saves a checkpoint and stops.
        while running or (waiting and stopped is None):
            while waiting and stopped is None and len(running) < jobs:
                running.append(waiting.pop(0))
            for task, steps in list(running):
                try:
                    next(steps)
                    continue
                except StopIteration as end:
                    running.remove((task, steps))
                    gc.collect()  # otherwise reference cycles of a finished run would keep GPU memory allocated
                    yield task, end.value
                except Stopped as error:
                    running.remove((task, steps))
                    stopped = stopped or error
    finally:
        for _, steps in running:
            steps.close()  # releases the lock on the run's directory
    if stopped is not None:
        raise stopped
