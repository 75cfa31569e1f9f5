"""The number of threads that a run computes with.

The sum of floating-point numbers depends on the order of its terms, and the order on the number of threads. Each run therefore
has its own number of threads, regardless of OMP_NUM_THREADS and of the number of concurrent runs: `Run.threads`, or one thread
per core of the machine on which the run starts. The number is recorded in environment.json and kept when the run resumes.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

import torch

from contrapose.lab.training.records.files import read_json

T = TypeVar("T")


def available_cores() -> int:
    """Return the number of physical cores that this process may use."""
    from joblib import cpu_count  # respects the limits of containers and of `taskset`

    siblings = Path("/sys/devices/system/cpu").glob("cpu*/topology/thread_siblings_list")
    # Two threads on one core share its arithmetic units and only wait for each other.
    physical = {path.read_text() for path in siblings}
    return min(int(cpu_count()), len(physical) or int(cpu_count()))


def choose_threads(folder: Path, requested: int, world_size: int) -> int:
    """Return the number of threads for each process of a run; raise ValueError if OpenMP would use fewer.

    folder       directory of the run, whose environment.json has the number of threads with which the run was started
    requested    the run's setting; 0: one thread per core
    world_size   number of processes that share the cores
    """
    threads = requested or _recorded_threads(folder) or max(1, available_cores() // world_size)
    # libgomp reads these variables itself, and may then start fewer threads than torch requests.
    limit, dynamic = os.environ.get("OMP_THREAD_LIMIT", ""), os.environ.get("OMP_DYNAMIC", "")
    if limit.isdecimal() and int(limit) < threads:
        raise ValueError(f"threads: OMP_THREAD_LIMIT={limit} is below the {threads} threads of this run; unset it")
    if dynamic.lower() == "true":
        raise ValueError(f"threads: OMP_DYNAMIC={dynamic} changes the number of threads during a run; unset it")
    return threads


def _recorded_threads(folder: Path) -> int | None:
    """Return the number of threads with which a run was started; None for a new run, or one from before this was recorded."""
    path = folder / "environment.json"
    if not path.exists():
        return None
    try:
        threads = read_json(path).get("threads", None)
    except (OSError, ValueError, AttributeError):
        threads = 0
    if threads is not None and (type(threads) is not int or threads < 1):
        raise ValueError(
            f"out: {path} does not say how many threads the run was started with; restore it from a copy, or delete it to "
            "continue with one thread per core, which can change the last digits"
        )
    return threads


@contextmanager
def fixed_threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads within this block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def with_fixed_threads(work: Generator[None, None, T], count: int) -> Generator[None, None, T]:
    """Run a generator with `count` threads; whenever it yields, the caller's number of threads is restored."""
    with closing(work):
        while True:
            with fixed_threads(count):
                try:
                    next(work)
                except StopIteration as end:
                    value: T = end.value
                    return value
            yield
