"""Execute the runs of studies in other processes: on this machine, or on a Ray cluster."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import replace
from multiprocessing.context import BaseContext
from multiprocessing.managers import SyncManager
from pathlib import Path
from typing import Any

from contrapose.studies.task import Task, Watch, perform, performing
from contrapose.training import Stopped, signals
from contrapose.training.stops import StopRequests
from contrapose.workers import exit_with_parent, process_context

SILENCE = 7200.0  # seconds without a step or an evaluation after which a run's process is killed


def in_processes(tasks: Sequence[Task], watch: Watch, jobs: int) -> dict[str, str]:
    """Execute tasks in a pool of `jobs` processes; return why each failed task failed, by name.

    A process that is killed breaks its pool: what is not done goes to a new pool, at most twice.
    """
    failures: dict[str, str] = {}
    if not tasks:
        return failures
    for _ in range(3):
        with signals() as requests:
            lost = _in_one_pool(tasks, watch, jobs, failures, requests)
        tasks = [task for task in tasks if task.name in lost]
        if not tasks:
            return failures
    for task in tasks:
        failures[task.name] = "its process was killed three times"
        watch.ended(task.name, failures[task.name])
    return failures


def _in_one_pool(
    tasks: Sequence[Task], watch: Watch, jobs: int, failures: dict[str, str], requests: StopRequests
) -> set[str]:
    """The names of those that were lost with a killed process."""
    context, lost, heard = process_context(), set(), dict[str, float]()
    with _manager(context) as manager:
        told, stop, workers = manager.Queue(), manager.Event(), min(jobs, len(tasks))
        with ProcessPoolExecutor(workers, mp_context=context, initializer=_share, initargs=(workers,)) as pool:
            alike = [replace(task, concurrent_runs=workers - 1) for task in tasks]
            running = {pool.submit(_reported, task, told, stop): task.name for task in alike}
            try:
                while running:
                    if requests:
                        raise requests.stopped()
                    ended, _ = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
                    with _perhaps_gone():
                        while not told.empty():
                            name, progress = told.get()
                            heard[name] = time.monotonic()
                            if progress is not None:
                                watch.step(name, progress)
                    for future in ended:
                        name, error = running.pop(future), future.exception()
                        heard.pop(name, None)
                        if name in failures:
                            continue
                        if isinstance(error, BrokenProcessPool):
                            lost.add(name)
                            continue
                        why = future.result()
                        watch.ended(name, why)
                        failures |= {name: why} if why else {}
                    silent = [name for name, when in heard.items() if time.monotonic() - when > SILENCE]
                    for name in silent:
                        failures[name] = (
                            f"no step and no evaluation for {SILENCE / 60:g} minutes; its process was stopped"
                        )
                        watch.ended(name, failures[name])
                    if (
                        silent
                    ):  # the pool does not say which process has it: kill all; the other runs resume in another pool
                        _send(pool, signal.SIGKILL)
            except BaseException:  # a signal: running tasks save and stop, the others do not start
                with _perhaps_gone():
                    stop.set()
                _send(pool, signal.SIGTERM)
                pool.shutdown(wait=True, cancel_futures=True)
                raise
    return lost


def _manager(context: BaseContext) -> SyncManager:
    """Start a manager whose process ends with this one."""
    manager = SyncManager(ctx=context)
    manager.start(exit_with_parent)
    return manager


def _send(pool: ProcessPoolExecutor, number: int) -> None:
    for worker in list(pool._processes):
        with suppress(ProcessLookupError):
            os.kill(worker, number)


def _perhaps_gone() -> suppress:
    """Ignore a manager that is gone: a signal to the whole process group ends it too, and reaches the workers directly."""
    return suppress(OSError, EOFError)


def _share(workers: int) -> None:
    """Initialise a worker process: it uses its share of the cores, and ends with the process that started it."""
    import torch

    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
    exit_with_parent()


def _reported(task: Task, told: Any, stop: Any) -> str:
    """Execute a task and report its start, steps and evaluations, so that silence means that it hangs."""
    if stop.is_set():
        raise Stopped(f"{task.name} did not begin")
    told.put((task.name, None))
    watch = Watch(step=lambda name, progress: told.put((name, progress)))
    with signals() as requests:
        work = performing(task, watch.stepped, requests, patient=True)
        while True:
            try:
                next(work)
            except StopIteration as end:
                return str(end.value)
            told.put((task.name, None))


def on_ray(tasks: Sequence[Task], watch: Watch) -> dict[str, str]:
    """Execute each run as a Ray task; return why each failed one failed, by name.

    All nodes must see the directory of runs under the same path.
    """
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
    """Execute a task on another node, in the working directory of the driver, so that relative paths are the same."""
    os.makedirs(place, exist_ok=True)
    os.chdir(place)
    return perform(task)
