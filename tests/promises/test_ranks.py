"""A rank that is killed or stopped ends the run within --worker-timeout: one line, with its name and the step to resume from.

The ranks are real processes of the command line. Resumed runs are bit-identical to uninterrupted ones.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import Promise
from processes import TORCHRUN, run_command, run_in_process_group, start_process_group
from run_files import records, steps_saved, weights

from contrapose.lab.training import Run, Trainer

TIMEOUT = 8  # of the workers and ranks, in seconds
SETTINGS: dict[str, Any] = {
    "limit": 128, "batch": 32, "epochs": 16, "knn-every": 16, "knn": 5, "metrics": 0, "warmup": 0.5, "threads": 1,
    "worker-timeout": TIMEOUT,
}  # fmt: skip
ARGUMENTS = [text for name, value in SETTINGS.items() for text in (f"--{name}", str(value))]
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def train(rank: int, world_size: int, out: str) -> None:
    """Run the command line as a rank of a run in the directory `out`, with its output in a file beside it."""
    os.environ |= {"WORLD_SIZE": str(world_size), "RANK": str(rank)}
    run_command(["train", *ARGUMENTS, "--out", out], Path(f"{out}-{rank}.log"))


def output(folder: Path, rank: int) -> str:
    return Path(f"{folder}-{rank}.log").read_text()


def lines_about_a_rank(folder: Path, world_size: int) -> list[str]:
    lines = [line for rank in range(world_size) for line in output(folder, rank).splitlines()]
    return [line for line in lines if line.startswith("contrapose: rank")]


def signalled(folder: Path, world_size: int, *, name: str, rank: int, epoch: int, pause: float) -> float:
    """Signal a rank `pause` seconds after a checkpoint of the epoch; return the seconds until the other ranks have ended."""
    ranks = start_process_group(train, world_size, folder)
    while max(steps_saved(folder), default=0) < 4 * epoch:
        assert all(process.is_alive() for process in ranks.processes), [output(folder, r) for r in range(world_size)]
        time.sleep(0.002)
    time.sleep(pause)
    os.kill(ranks.processes[rank].pid, SIGNALS[name])
    start, others = time.perf_counter(), [p for r, p in enumerate(ranks.processes) if r != rank]
    for process in others:
        process.join(60)
    seconds = time.perf_counter() - start
    assert [process.exitcode for process in others] == [1] * len(others), [output(folder, r) for r in range(world_size)]
    ranks.processes[rank].kill()
    ranks.processes[rank].join()
    return seconds


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run on two ranks, without a signal."""
    folder = tmp_path_factory.mktemp("ranks") / "whole"
    run_in_process_group(train, 2, folder)
    return folder


def check_failure(folder: Path, *, name: str, rank: int, world_size: int = 2) -> None:
    (line,) = lines_about_a_rank(folder, world_size)
    did = "died" if name == "kill" else f"did not respond for {TIMEOUT} s"
    found = re.fullmatch(
        rf"contrapose: rank {rank} \(.*, process \d+\) {did}; run the same command again to resume after step (\d+)(.*)",
        line,
    )
    assert found, line
    assert int(found[1]) == max(steps_saved(folder))
    assert all(
        "/contrapose/" not in output(folder, r) for r in range(world_size)
    )  # of a traceback; torchrun prints its own


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("kill", 1),
        pytest.param("stop", 0, marks=pytest.mark.slow),
        pytest.param("kill", 0, marks=pytest.mark.slow),
        pytest.param("stop", 1, marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_fails_is_named(name: str, rank: int, whole: Path, tmp_path: Path, promise: Promise) -> None:
    folder = tmp_path / "run"
    promise.case(signalled(folder, 2, name=name, rank=rank, epoch=2, pause=0.0))
    assert promise.worst < TIMEOUT + 20  # and not torch's 30 minutes
    check_failure(folder, name=name, rank=rank)
    run_in_process_group(train, 2, folder)
    assert weights(folder) == weights(whole)
    assert records(folder) == records(whole)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_rank_that_fails_anywhere(seed: int, whole: Path, tmp_path: Path, promise: Promise) -> None:
    draws, folder = random.Random(seed), tmp_path / "run"
    name, rank = draws.choice(list(SIGNALS)), draws.randrange(2)
    promise.case(signalled(folder, 2, name=name, rank=rank, epoch=draws.randint(1, 6), pause=draws.uniform(0, 0.3)))
    assert promise.worst < TIMEOUT + 20
    check_failure(folder, name=name, rank=rank)
    run_in_process_group(train, 2, folder)
    assert weights(folder) == weights(whole)
    assert records(folder) == records(whole)


@pytest.mark.slow
@pytest.mark.parametrize("name", SIGNALS)
def test_one_line_of_four_ranks(name: str, tmp_path: Path, promise: Promise) -> None:
    """One of the three that are left prints the failure."""
    folder = tmp_path / "run"
    signalled(folder, 4, name=name, rank=2, epoch=2, pause=0.0)
    check_failure(folder, name=name, rank=2, world_size=4)
    promise.case()


def train_with_long_phases(rank: int, world_size: int, out: str) -> None:
    """Train with phases of Python code that take twice the timeout: one in rank 0 alone, before each evaluation, and one in rank 1."""
    os.environ |= {"WORLD_SIZE": str(world_size), "RANK": str(rank)}

    def work(*values: object) -> None:
        end = time.monotonic() + 10
        while time.monotonic() < end:
            sum(range(1000))

    run = Run(limit=64, batch=32, epochs=2, knn=5, knn_every=1, metrics=0, threads=1)
    trainer = Trainer(run, Path(out), log=lambda text: None, worker_timeout=5, on_evaluation=work)
    if rank == 1:
        work()  # as if it built a cache or compiled
    trainer.train()


@pytest.mark.slow
def test_a_rank_that_is_busy_for_longer_than_the_timeout_has_not_failed(tmp_path: Path, promise: Promise) -> None:
    run_in_process_group(train_with_long_phases, 2, tmp_path / "run")
    assert [record["epoch"] for record in records(tmp_path / "run")] == [1, 2]
    promise.case()


def children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stop", "kill"])
def test_under_torchrun(name: str, tmp_path: Path, promise: Promise) -> None:
    """torchrun serves the store itself, sends SIGTERM to the others if a rank dies, and kills a stopped rank in the end."""
    folder, epochs = tmp_path / "run", ["--epochs", "400", "--knn-every", "400"]
    with (tmp_path / "run-0.log").open("wb") as log:
        agent = subprocess.Popen(
            [*TORCHRUN, "train", *ARGUMENTS, *epochs, "--out", str(folder)], stdout=log, stderr=log
        )
    while not steps_saved(folder):
        assert agent.poll() is None, output(folder, 0)
        time.sleep(0.05)
    # The ranks start in the order of their numbers.
    ranks = sorted(pid for pid in children(agent.pid) if b"contrapose" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(ranks[1], SIGNALS[name])
    assert agent.wait(120) == 1
    check_failure(folder, name=name, rank=1, world_size=1)
    promise.case()
