"""`contrapose study run` in a process of its own: killed, stopped, restarted, and started twice."""

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
from contrapose.training.locks import lock_directory

STUDY = "behaviour/figure2"


def start(root: Path, *more: str) -> subprocess.Popen[bytes]:
    arguments = ["study", "run", STUDY, "--root", str(root / "runs"), "-o", str(root / "reports"), *more]
    return subprocess.Popen(
        [sys.executable, "-m", "contrapose", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def tasks_in(root: Path) -> list[Task]:
    plan = find(STUDY).plan("smoke")
    return [Task(run, plan.measures(data, row), root / "runs") for row, data, run in plan.cells(1)]


@pytest.mark.slow
def test_signal_to_the_process_group(tmp_path: Path) -> None:
    """`timeout` signals the whole process group, so the helpers of the pool end too; one line reports the signal."""
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


def descendants(process: int) -> list[int]:
    """Return the ids of the children of a process, of their children, and so on."""
    path = Path(f"/proc/{process}/task/{process}/children")
    direct = [int(child) for child in path.read_text().split()] if path.exists() else []
    return direct + [other for child in direct for other in descendants(child)]


def test_a_killed_study_leaves_no_process(tmp_path: Path) -> None:
    """Not the manager, the fork server or a worker; and the locks of the runs are free."""
    study = start(tmp_path, "--jobs", "2")
    while not list((tmp_path / "runs").glob("*/run.json")):
        assert study.poll() is None
        time.sleep(0.05)
    helpers = descendants(study.pid)
    assert len(helpers) >= 4  # resource tracker or fork server, manager, two workers
    for helper in helpers:  # as a service manager does before it kills: only the runs listen to it
        os.kill(helper, signal.SIGINT)
    study.kill()
    study.wait()
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{helper}").exists() for helper in helpers):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    for path in (tmp_path / "runs").glob("*/run.json"):
        with lock_directory(path.parent) as acquired:
            assert acquired


@pytest.mark.parametrize("seed", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(1, 6))])
def test_killed_and_restarted(tmp_path: Path, seed: int) -> None:
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
    (folder,) = (tmp_path / "reports").iterdir()
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {"index.html", "index.md"} < files.keys()
    for path in folder.iterdir():
        path.unlink()
    write(document([find(STUDY).plan("smoke")], 1, tmp_path / "runs"), folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files


@pytest.mark.slow
def test_two_processes_at_the_same_time(tmp_path: Path) -> None:
    processes = [start(tmp_path), start(tmp_path)]
    assert [process.wait(300) for process in processes] == [0, 0]
    for task in tasks_in(tmp_path):
        assert [record["epoch"] for record in RunDirectory(task.folder).records()] == [1, 2]


def test_a_failed_run_in_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = find("behaviour/equation6").plan("smoke")
    first, second = plan.runs(1).values()
    (tmp_path / first.name / "checkpoints").mkdir(parents=True)
    (tmp_path / first.name / "run.json").write_text(
        json.dumps({**first.describe(), "lr": 9.0})
    )  # settings of another run
    with pytest.raises(SystemExit) as stopped:
        main(["study", "run", "behaviour/equation6", "--root", str(tmp_path), "-o", str(tmp_path / "out")])
    assert stopped.value.code == 1
    output = capsys.readouterr().out
    assert f"{first.name} failed" in output
    assert f"{second.name} done" in output
    page = (tmp_path / "out" / "behaviour-equation6-smoke" / "index.html").read_text()
    assert "holds another run" in page
    assert "too small to decide" in page
    assert collect(plan, 1, tmp_path).cell("contrastive τ = 0.2", "accuracy").values


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
