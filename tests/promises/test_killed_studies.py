"""A study that is killed and restarted, or started twice, repeats no run, misses none, and leaves no process."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import Promise
from streaming import all_exit

from contrapose.lab.report.render import write
from contrapose.lab.studies import find
from contrapose.lab.studies.collect import document
from contrapose.lab.studies.run_directory import RunDirectory
from contrapose.lab.studies.task import Task
from contrapose.lab.training.locks import lock_directory

STUDY = "behaviour/figure2"


def start(root: Path, *more: str) -> subprocess.Popen[bytes]:
    arguments = ["study", "run", STUDY, "--runs-dir", str(root / "runs"), "-o", str(root / "reports"), *more]
    with (root / "log").open("ab") as log:
        return subprocess.Popen([sys.executable, "-m", "contrapose", *arguments], stdout=log, stderr=subprocess.STDOUT)


def tasks_in(root: Path) -> list[Task]:
    plan = find(STUDY).plan("smoke")
    return [Task(run, plan.measures(data, row), root / "runs") for row, data, run in plan.cells(1)]


def descendants(process: int) -> list[int]:
    """Return the ids of the children of a process, of their children, and so on."""
    path = Path(f"/proc/{process}/task/{process}/children")
    direct = [int(child) for child in path.read_text().split()] if path.exists() else []
    return direct + [other for child in direct for other in descendants(child)]


def started(root: Path) -> tuple[subprocess.Popen[bytes], list[int]]:
    """Start a study with two jobs; return it and its helpers once a run is in training."""
    study = start(root, "--jobs", "2")
    while not list((root / "runs").glob("*/run.json")):
        assert study.poll() is None
        time.sleep(0.05)
    helpers = descendants(study.pid)
    assert len(helpers) >= 4  # resource tracker or fork server, manager, two workers
    return study, helpers


@pytest.mark.thorough
def test_a_killed_study_leaves_no_process(tmp_path: Path, promise: Promise) -> None:
    """Not the manager, the fork server or a worker; and the locks of the runs are free."""
    study, helpers = started(tmp_path)
    study.kill()
    study.wait()
    assert all_exit(helpers)
    for path in (tmp_path / "runs").glob("*/run.json"):
        with lock_directory(path.parent) as acquired:
            assert acquired
    promise.case()


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_to_the_helpers_of_a_study(tmp_path: Path, number: int, promise: Promise) -> None:
    """A job scheduler signals every process, and these may be first: the runs are saved, and the study ends as by its own."""
    study, helpers = started(tmp_path)
    for helper in helpers:
        os.kill(helper, number)
    try:
        assert study.wait(60) == 128 + number, (tmp_path / "log").read_text()
    finally:
        study.kill()
    log = (tmp_path / "log").read_text()
    assert f"stopped by signal {int(number)}" in log.splitlines()[-1]
    # Python's own pool may print how an idle worker of it ended, but the code of a run is never interrupted.
    assert "studies/task.py" not in log
    assert all_exit(helpers)
    promise.case()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_killed_and_restarted(tmp_path: Path, seed: int, promise: Promise) -> None:
    """After kills at random times no run is repeated or missing, and a rebuilt report has the same bytes."""
    rng = random.Random(seed)
    finished: dict[str, int] = {}
    for _ in range(2):
        process = start(tmp_path)
        try:
            process.wait(rng.uniform(4, 9))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        process.wait()
        for task in tasks_in(tmp_path):
            if task.done():
                finished.setdefault(task.name, (task.folder / "records.jsonl").stat().st_mtime_ns)
    assert start(tmp_path).wait(240) == 0
    for task in tasks_in(tmp_path):
        assert task.done()
        assert [record["epoch"] for record in RunDirectory(task.folder).records()] == [1, 2]
        if task.name in finished:
            assert (task.folder / "records.jsonl").stat().st_mtime_ns == finished[task.name]
        promise.case()
    (folder,) = (tmp_path / "reports").iterdir()
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {"index.html", "index.md"} < files.keys()
    write(document([find(STUDY).plan("smoke")], 1, tmp_path / "runs"), tmp_path / "rebuilt")
    assert {path.name: path.read_bytes() for path in (tmp_path / "rebuilt").iterdir()} == files


@pytest.mark.slow
def test_two_processes_at_the_same_time(tmp_path: Path, promise: Promise) -> None:
    processes = [start(tmp_path), start(tmp_path)]
    assert [process.wait(300) for process in processes] == [0, 0]
    for task in tasks_in(tmp_path):
        assert [record["epoch"] for record in RunDirectory(task.folder).records()] == [1, 2]
        promise.case()
