"""Execute the runs of studies in other processes: on this machine, on a Ray cluster, or on Slurm."""

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

from contrapose.child_processes import exit_on_signals, exit_with_parent, process_context, unblock_signals
from contrapose.extras import install_command
from contrapose.lab.devices import select_device, selected_device
from contrapose.lab.jobs.description import read_description
from contrapose.lab.jobs.resumable import Resumable
from contrapose.lab.studies.task import ProgressDisplay, Task, run_task, task_steps
from contrapose.lab.training import Stopped, signals
from contrapose.lab.training.stops import StopRequests

SILENCE_LIMIT = 7200.0  # seconds without a step or an evaluation after which a run's process is killed
POOLS = 3  # a run counts as failed after it has broken this many pools
_in_worker: dict[str, Any] = {}  # what a worker process shares with its parent, set when it starts


def run_in_processes(tasks: Sequence[Task], display: ProgressDisplay, jobs: int) -> dict[str, str]:
    """Execute tasks in a pool of `jobs` processes; return the reason for each failure, keyed by task name.

    A killed process breaks the pool and interrupts all runs in it. These runs resume in a new pool, at most twice.
    """
    failures: dict[str, str] = {}
    if not tasks:
        return failures
    for _ in range(POOLS):
        with signals() as requests:
            lost = _run_in_pool(tasks, display, jobs, failures=failures, requests=requests)
        tasks = [task for task in tasks if task.name in lost]
        if not tasks:
            return failures
    for task in tasks:
        failures[task.name] = "its process was killed three times"
        display.on_end(task.name, failures[task.name])
    return failures


def _run_in_pool(
    tasks: Sequence[Task], display: ProgressDisplay, jobs: int, *, failures: dict[str, str], requests: StopRequests
) -> set[str]:
    """Execute tasks in one pool and add to `failures`; return the names of runs that were lost with a killed process."""
    # Each run uses one thread per core even if other runs share the cores, so threads must not spin while they wait.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    context, lost, last_heard = process_context(), set(), dict[str, float]()
    with _start_manager(context) as manager:
        messages, stop, workers = manager.Queue(), manager.Event(), min(jobs, len(tasks))
        start = (selected_device(), messages, stop)
        with ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=start) as pool:
            pool_tasks = [replace(task, concurrent_runs=workers - 1) for task in tasks]
            running = {pool.submit(_run_and_report, task): task.name for task in pool_tasks}
            try:
                while running:
                    if requests:
                        raise requests.stopped()
                    ended, _ = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
                    with _ignore_lost_manager():
                        while not messages.empty():
                            name, progress = messages.get()
                            last_heard[name] = time.monotonic()
                            if progress is not None:
                                display.on_step(name, progress)
                    for future in ended:
                        name, error = running.pop(future), future.exception()
                        last_heard.pop(name, None)
                        if name in failures:  # it was silent for too long, which has already been reported
                            continue
                        if isinstance(error, BrokenProcessPool):
                            lost.add(name)
                            continue
                        failure = future.result()
                        display.on_end(name, failure)
                        failures |= {name: failure} if failure else {}
                    silent = [name for name, when in last_heard.items() if time.monotonic() - when > SILENCE_LIMIT]
                    for name in silent:
                        failures[name] = (
                            f"no step and no evaluation for {SILENCE_LIMIT / 60:g} minutes; its process was stopped"
                        )
                        display.on_end(name, failures[name])
                    # The pool does not say which process executes a run, so all are killed; the other runs resume in a new
                    # pool.
                    if silent:
                        _send_signal(pool, signal.SIGKILL)
            except BaseException:  # a signal: running tasks save a checkpoint and stop, and queued tasks do not start
                with _ignore_lost_manager():
                    stop.set()
                _send_signal(pool, signal.SIGTERM)
                pool.shutdown(wait=True, cancel_futures=True)
                raise
    return lost


def _start_manager(context: BaseContext) -> SyncManager:
    """Start a manager whose process ends with this one."""
    manager = SyncManager(ctx=context)
    manager.start(exit_with_parent)
    return manager


def _send_signal(pool: ProcessPoolExecutor, number: int) -> None:
    for worker in list(pool._processes):
        with suppress(ProcessLookupError):
            os.kill(worker, number)


def _ignore_lost_manager() -> suppress:
    """Ignore that the manager has exited: a signal to the process group ends the manager too, and reaches workers directly."""
    return suppress(OSError, EOFError)


def _start_worker(device: str, messages: Any, stop: Any) -> None:
    """Initialise a worker process: it uses the given device, a signal stops its run, and it ends with its parent process."""
    # Kept until the process ends: if each task had its own, a signal could arrive in their finalisers, which ignore exceptions.
    _in_worker.update(messages=messages, stop=stop)
    select_device(device)
    exit_on_signals()
    exit_with_parent()


def _run_and_report(task: Task) -> str:
    """Execute a task and report its start, steps and evaluations, so that a silent task is known to hang."""
    messages, stop = _in_worker["messages"], _in_worker["stop"]

    def report(name: str, progress: Any = None) -> None:
        with _ignore_lost_manager():
            messages.put((name, progress))

    display = ProgressDisplay(on_step=report)
    with signals() as requests:
        unblock_signals()  # not before: an initialiser that a signal ends prints its traceback
        if requests:
            raise requests.stopped()
        # The executor sends a few queued tasks to its processes in advance, and these tasks cannot be cancelled.
        if stop.is_set():
            raise Stopped(f"{task.name} was not started")
        report(task.name)
        steps = task_steps(task, display.report_step, requests, wait=True)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return str(end.value)
            report(task.name)


def run_on_ray(tasks: Sequence[Task], display: ProgressDisplay) -> dict[str, str]:
    """Execute each run as a Ray task; return the reason for each failure, keyed by task name.

    All nodes must see the directory of runs under the same path.
    """
    try:
        import ray
    except ImportError as error:
        raise ValueError(f"executor: a Ray cluster needs: {install_command('cluster')}") from error
    if not ray.is_initialized():
        try:
            ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), log_to_driver=False)
        except ConnectionError as error:
            raise ValueError("executor: no Ray cluster found; start one with `ray start --head`") from error
    gpus = 1 if ray.cluster_resources().get("GPU", 0) else 0
    # If a node is lost, its run resumes from the checkpoint on another node, so a retry is cheap.
    remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=2)(_run_on_node)
    running = {remote.remote(task, str(Path.cwd())): task for task in tasks}
    failures: dict[str, str] = {}
    while running:
        ended, _ = ray.wait(list(running), num_returns=1)
        for reference in ended:
            task = running.pop(reference)
            try:
                failure = ray.get(reference)
            except ray.exceptions.RayError as error:
                failure = f"its node or process was lost: {str(error).splitlines()[0]}"
            failures |= _end_on_node(task, failure, display)
    return failures


def _end_on_node(task: Task, failure: str, display: ProgressDisplay) -> dict[str, str]:
    """Display the end of a run on another node; return the reason for its failure, keyed by its name, if there is one."""
    # A node without the shared file system writes to its local disk, and the results are lost.
    if not failure and not task.done():
        failure = f"its node does not see {task.folder.resolve()}"
    display.on_end(task.name, failure)
    return {task.name: failure} if failure else {}


def _run_on_node(task: Task, working_directory: str) -> str:
    """Execute a task on another node, in the working directory of the driver, so that relative paths are the same."""
    os.makedirs(working_directory, exist_ok=True)
    os.chdir(working_directory)
    return run_task(task)


def run_in_jobs(tasks: Sequence[Task], display: ProgressDisplay, executor: str, jobs: int | None) -> dict[str, str]:
    """Execute each run as a job of one Slurm array, at most `jobs` at a time; return the reason for each failure, by task name.

    All nodes must see the directory of runs under the same path. A signal to this process cancels the jobs; they save their step.
    """
    description = read_description(executor)
    if description.world_size > 1:
        raise ValueError(
            f"executor: each run of a study is one process, but {executor.partition(':')[2]} asks for {description.in_words()}"
        )
    works = [Resumable(_run_in_job, task, str(Path.cwd())) for task in tasks]
    submitted = description.submit(works, tasks[0].root / "jobs", name="contrapose-study", at_a_time=jobs)
    running, failures = dict(zip(submitted, tasks, strict=True)), dict[str, str]()
    with signals() as requests:
        while running:
            if requests:
                for job in running:
                    job.cancel(check=False)
                raise requests.stopped()
            for job in [job for job in running if job.done()]:
                lost = f"its job {job.job_id} ended without a result; its log is {job.paths.stdout}"
                failures |= _end_on_node(running.pop(job), lost if job.exception() else job.result(), display)
            time.sleep(1)
    return failures


def _run_in_job(task: Task, working_directory: str) -> str:
    """Do the work of `_run_on_node`; if a signal stops it, exit with a command's exit code, which `Resumable` understands."""
    try:
        return _run_on_node(task, working_directory)
    except Stopped as stopped:
        raise SystemExit(128 + stopped.number) from stopped
