"""`contrapose study run` in a process of its own: stopped, and with runs that fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from contrapose.lab.cli import main
from contrapose.lab.studies import find
from contrapose.lab.studies.collect import collect


@pytest.mark.slow
def test_signal_to_the_process_group(tmp_path: Path) -> None:
    """`timeout` signals the whole process group, so the helpers of the pool end too; one line reports the signal."""
    arguments = [
        "study",
        "run",
        "behaviour/figure2",
        "--jobs",
        "2",
        "--runs-dir",
        str(tmp_path / "runs"),
        "-o",
        str(tmp_path / "out"),
    ]
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


@pytest.mark.thorough
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
        main(["study", "run", "behaviour/equation6", "--runs-dir", str(tmp_path), "-o", str(tmp_path / "out")])
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
    from contrapose.lab.studies import STUDIES

    names = [study.name for study in STUDIES.values() if not study.diagram]
    main(["study", "run", *names, "--jobs", "2", "--runs-dir", str(tmp_path / "runs"), "-o", str(tmp_path / "out")])
    assert (tmp_path / "out" / f"{len(names)}-studies-smoke" / "index.html").stat().st_size > 10**6


@pytest.mark.slow
def test_terminated_with_several_processes(tmp_path: Path) -> None:
    """Running tasks are saved, no process is left behind, and the exit code and one line say what happened."""
    arguments = [
        "study",
        "run",
        "behaviour/figure4",
        "--jobs",
        "2",
        "--runs-dir",
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
