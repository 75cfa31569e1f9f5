"""SIGTERM and Ctrl-C end every command with one line and the shell's exit code, whatever it is doing, and leave no process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from PIL import Image

from contrapose.lab.studies.execute import run_tasks
from contrapose.lab.studies.task import Task
from contrapose.lab.training import Run, Stopped

CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}
NUMBERS = [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "contrapose", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def read_until(process: subprocess.Popen[str], text: str) -> None:
    """Read the output of a process up to a line that contains `text`."""
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return
    raise AssertionError(f"{text!r} was not printed")


def check_end(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Signal a process; check that it ends with one line, and that no other process holds its pipes any more."""
    process.send_signal(number)
    _, stderr = process.communicate(timeout=200)
    assert process.returncode == CODES[number], stderr
    (message,) = stderr.splitlines()
    assert message.startswith(f"contrapose: stopped by signal {int(number)}")
    assert "run the same command again" in message


def write_slow_folder(folder: Path, count: int = 400) -> None:
    """Write a folder of images that takes seconds to read."""
    folder.mkdir(parents=True)
    source = folder / "source.png"
    Image.effect_noise((512, 512), 50).save(source)
    for part in ("train", "test"):
        for label in ("a", "b"):
            (folder / part / label).mkdir(parents=True)
            for i in range(count // 4):
                os.link(source, folder / part / label / f"{i}.png")


@pytest.mark.parametrize("number", CODES)
def test_while_the_command_is_imported(number: signal.Signals) -> None:
    process = start("data", "list")
    status = Path(f"/proc/{process.pid}/status")
    # Only once SIGTERM is handled, which comes after SIGINT: before that, nothing of this package has run.
    while True:
        caught = next(line for line in status.read_text().splitlines() if line.startswith("SigCgt"))
        if int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1:
            break
        assert process.poll() is None
        time.sleep(0.001)
    check_end(process, number)


@pytest.mark.thorough
@pytest.mark.parametrize("number", NUMBERS)
def test_while_the_images_are_read(number: signal.Signals, tmp_path: Path) -> None:
    write_slow_folder(tmp_path / "mine")
    out = ["--runs-dir", str(tmp_path / "runs"), "-o", str(tmp_path / "reports")]
    process = start("compare", "--data", str(tmp_path / "mine"), "--losses", "simclr", *out)
    read_until(process, "chosen for")
    check_end(process, number)


def test_a_run_of_a_study_that_is_reading_its_images(tmp_path: Path) -> None:
    """The signal is not taken for an image that cannot be read, and the run does not count as failed."""
    write_slow_folder(tmp_path / "mine")
    task = Task(Run(data=str(tmp_path / "mine"), batch=16, epochs=1), (), tmp_path / "runs")
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
    with pytest.raises(Stopped, match="stopped by signal 15"):
        run_tasks([task])
    assert not task.folder.exists()


@pytest.mark.thorough
@pytest.mark.parametrize("number", NUMBERS)
def test_the_demo(number: signal.Signals, tmp_path: Path) -> None:
    """In its pre-training, whose progress is saved."""
    arguments = ["demo", "--minutes", "1", "--runs-dir", str(tmp_path / "runs"), "-o", str(tmp_path / "reports")]
    process = start(*arguments)
    read_until(process, "Training one encoder first")
    while not list(tmp_path.glob("runs/*/run.json")):
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(1)
    check_end(process, number)
    assert list(tmp_path.glob("runs/*/run.json"))
    assert not list(tmp_path.glob("runs/*/failure.json"))


@pytest.mark.slow
def test_a_pool(tmp_path: Path) -> None:
    """Every run is saved, and no worker is left behind."""
    arguments = ["compare", "--limit", "64", "--batch", "32", "--knn", "3", "--metrics", "20", "--jobs", "2"]
    arguments += ["--losses", "simclr,dystress", "--runs-dir", str(tmp_path / "runs"), "-o", str(tmp_path / "reports")]
    process = start(*arguments, "--epochs", "500")
    while not list(tmp_path.glob("runs/*/records.jsonl")):
        assert process.poll() is None
        time.sleep(0.05)
    check_end(process, signal.SIGINT)
    assert list(tmp_path.glob("runs/*/checkpoints/step-*"))
    assert not list(tmp_path.glob("runs/*/failure.json"))
