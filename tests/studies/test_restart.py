"""`contrapose study run` in processes of its own: killed, stopped, restarted, and started twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from contrapose.cli import main
from contrapose.report.render import write
from contrapose.studies import find
from contrapose.studies.collect import collect, document
from contrapose.studies.results import RunDirectory
from contrapose.studies.task import Task

STUDY = "behaviour/figure2"


def started(root: Path, *more: str) -> subprocess.Popen[bytes]:
    arguments = ["study", "run", STUDY, "--root", str(root / "runs"), "-o", str(root / "reports"), *more]
    return subprocess.Popen(
        [sys.executable, "-m", "contrapose", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def tasks_of(root: Path) -> list[Task]:
    plan = find(STUDY).plan("smoke")
    return [Task(run, plan.measures, root / "runs") for run in plan.runs(1).values()]


@pytest.mark.slow
def test_signal_to_the_process_group(tmp_path: Path) -> None:
    """As `timeout` sends it: helpers of the pool end too, and one line says what happened."""
    arguments = ["study", "run", STUDY, "--jobs", "2", "--root", str(tmp_path / "runs"), "-o", str(tmp_path / "out")]
    running = subprocess.Popen(
        [sys.executable, "-m", "contrapose", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    while not list((tmp_path / "runs").glob("*/run.json")):
        time.sleep(0.1)
    os.killpg(running.pid, signal.SIGTERM)
    _, stderr = running.communicate(timeout=60)
    assert running.returncode == 143
    assert b"stopped by signal 15" in stderr
    assert b"Traceback" not in stderr


@pytest.mark.parametrize("seed", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(1, 6))])
def test_killed_and_restarted(tmp_path: Path, seed: int) -> None:
    """Killed at random moments, until it is done: no run twice, none missing; the report rebuilt is the same to the byte."""
    chance = random.Random(seed)
    settled: dict[str, int] = {}
    for _ in range(2):
        process = started(tmp_path)
        try:
            process.wait(chance.uniform(4, 9))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        process.wait()
        for task in tasks_of(tmp_path):
            if task.done():
                settled.setdefault(task.name, (task.folder / "records.jsonl").stat().st_mtime_ns)
    assert started(tmp_path).wait(240) == 0
    for task in tasks_of(tmp_path):
        assert task.done()
        assert [record["epoch"] for record in RunDirectory(task.folder).records()] == [1, 2]
        if task.name in settled:
            assert (task.folder / "records.jsonl").stat().st_mtime_ns == settled[task.name]
    (folder,) = (tmp_path / "reports").iterdir()
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {"index.html", "index.md"} < files.keys()
    for path in folder.iterdir():
        path.unlink()
    write(document([find(STUDY).plan("smoke")], 1, tmp_path / "runs"), folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files


@pytest.mark.slow
def test_two_started_at_once(tmp_path: Path) -> None:
    both = [started(tmp_path), started(tmp_path)]
    assert [process.wait(300) for process in both] == [0, 0]
    for task in tasks_of(tmp_path):
        assert [record["epoch"] for record in RunDirectory(task.folder).records()] == [1, 2]


def test_a_failed_run_in_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = find("behaviour/equation6").plan("smoke")
    first, second = plan.runs(1).values()
    (tmp_path / first.name / "checkpoints").mkdir(parents=True)
    (tmp_path / first.name / "run.json").write_text(json.dumps({**first.describe(), "lr": 9.0}))  # holds another run
    with pytest.raises(SystemExit) as stopped:
        main(["study", "run", "behaviour/equation6", "--root", str(tmp_path), "-o", str(tmp_path / "out")])
    assert stopped.value.code == 1
    output = capsys.readouterr().out
    assert f"{first.name} failed" in output
    assert f"{second.name} done" in output
    page = (tmp_path / "out" / "behaviour-equation6-smoke" / "index.html").read_text()
    assert "holds another run" in page
    assert "too small to decide" in page
    assert collect(plan, 1, tmp_path).cell("contrastive τ = 0.2", "").values


@pytest.mark.slow
def test_every_smoke_scale_runs(tmp_path: Path) -> None:
    from contrapose.studies import STUDIES

    names = [study.name for study in STUDIES.values() if not study.missing and not study.diagram]
    main(["study", "run", *names, "--jobs", "2", "--root", str(tmp_path / "runs"), "-o", str(tmp_path / "out")])
    assert (tmp_path / "out" / f"{len(names)}-studies-smoke" / "index.html").stat().st_size > 10**6


def test_terminated_with_several_processes(tmp_path: Path) -> None:
    """Running tasks are saved, no process is left behind, and the exit code and one line say what happened."""
    arguments = [
        "study",
        "run",
        "behaviour/figure4",
        "--jobs",
        "2",
        "--root",
        str(tmp_path / "runs"),
        "-o",
        str(tmp_path),
    ]
    process = subprocess.Popen([sys.executable, "-m", "contrapose", *arguments], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("runs/*/run.json")) and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)  # ends only when no process holds the pipe any more
    assert process.returncode == 143
    assert stderr.strip().splitlines()[-1].startswith("contrapose: stopped by signal 15")
