"""Jobs through submitit, on this machine and on a fake Slurm: a run of two ranks that is requeued equals one that is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_slurm import descendants, install
from run_files import epochs_done, records, weights

from contrapose.lab.jobs.description import JobDescription
from contrapose.lab.jobs.resumable import Resumable

pytest.importorskip("submitit", reason="submitit is not installed (the extra `slurm`)")
pytestmark = pytest.mark.thorough

# Some seconds of training by two ranks; the signal comes after two epochs.
TRAIN = [
    "train",
    "--limit",
    "128",
    "--batch",
    "32",
    "--epochs",
    "10",
    "--knn",
    "5",
    "--knn-every",
    "10",
    "--metrics",
    "0",
]
FILE = "hours = 1\ntasks_per_node = 2\nsetup = ['export SET_UP=yes']\n"


def wait_until(condition: Callable[[], object], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def submit(folder: Path, executor: str, *, path: Path | None = None) -> tuple[str, Path]:
    """Submit a run of two ranks through the command line; return the job's id and the log of rank 0."""
    (folder / "job.toml").write_text(FILE)
    command = [sys.executable, "-m", "contrapose", *TRAIN, "--out", "run", "--executor", f"{executor}:job.toml"]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PATH": f"{path}:{os.environ['PATH']}" if path else os.environ["PATH"],
    }
    with open(folder / "printed", "w") as file:  # not a pipe, which a local job would keep open
        subprocess.run(command, cwd=folder, env=environment, stdout=file, stderr=file, check=False)
    printed = (folder / "printed").read_text()
    lines = {line.split()[0]: line.split() for line in printed.splitlines()}
    assert "job" in lines, printed
    job, log = lines["job"][1], Path(lines["log"][1])
    assert lines["cancel"][1:3] == ["scancel" if executor == "slurm" else "kill", job]
    assert "1 node with 2 processes, for up to 1 h at a time" in printed
    return job, log


def is_alive(process: int) -> bool:
    """Return whether a process of this test's own runs, and is not a zombie."""
    status = Path(f"/proc/{process}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted")
    job, log = submit(folder, "local")
    wait_until(lambda: not is_alive(int(job)))
    assert "negatives: 62 per anchor (--batch 32 on 2 processes" in log.read_text()
    return folder / "run"


def check_requeued(run: Path, log: Path, uninterrupted: Path) -> None:
    text = log.read_text()
    assert text.count("Starting with JobEnvironment") == 2
    assert "resum" in text
    assert text.count("Requeued job") == 1
    assert records(run) == records(uninterrupted)
    assert weights(run) == weights(uninterrupted)


@pytest.mark.slow  # a minute, like the next one, which starts the same job in another way
def test_a_local_job_of_two_ranks_is_requeued(tmp_path: Path, uninterrupted: Path) -> None:
    job, log = submit(tmp_path, "local")
    wait_until(lambda: epochs_done(tmp_path / "run") >= 2)
    for process in descendants(int(job)):
        os.kill(process, signal.SIGUSR2)
    wait_until(lambda: not is_alive(int(job)))
    check_requeued(tmp_path / "run", log, uninterrupted)


def test_a_slurm_job_of_two_ranks_is_requeued(tmp_path: Path, uninterrupted: Path) -> None:
    slurm = install(tmp_path / "slurm")
    job, log = submit(tmp_path, "slurm", path=slurm)
    assert job == "1000"
    wait_until(lambda: epochs_done(tmp_path / "run") >= 2)
    subprocess.run([slurm / "scancel", job, "--signal", "USR2"], check=True)  # what Slurm does before the time limit
    wait_until((slurm / f"{job}.ended").exists)
    check_requeued(tmp_path / "run", log, uninterrupted)
    calls = (slurm / "commands.log").read_text().splitlines()
    assert calls.count(f"scontrol requeue {job}") == 1
    assert (slurm / f"{job}.starts").read_text().count("start") == 2
    assert "export SET_UP=yes" in (slurm / f"{job}.script").read_text()


def test_a_cancelled_job_is_not_requeued(tmp_path: Path) -> None:
    slurm = install(tmp_path / "slurm")
    job, log = submit(tmp_path, "slurm", path=slurm)
    wait_until(lambda: epochs_done(tmp_path / "run") >= 1)
    subprocess.run([slurm / "scancel", job], check=True)
    wait_until((slurm / f"{job}.ended").exists)
    assert "stopped by signal 15" in log.read_text()
    assert "requeue" not in (slurm / "commands.log").read_text()
    assert 1 <= epochs_done(tmp_path / "run") < 10
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))


def survives_signal() -> bool:
    """Return whether a child process, such as a data-loading worker, survives submitit's signal."""
    child = subprocess.Popen(["sleep", "60"])
    os.kill(child.pid, signal.SIGUSR2)
    try:
        child.wait(1)
    except subprocess.TimeoutExpired:
        return True
    finally:
        child.kill()
        child.wait()
    return False


def test_child_processes_survive_the_signal(tmp_path: Path) -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the job cannot import this file
    job = JobDescription("local", hours=1).submit([Resumable(survives_signal)], tmp_path / "jobs", name="child")[0]
    assert job.result() is True
    assert (
        job.paths.submitted_pickle.parent.stat().st_mode & 0o777 == 0o700
    )  # only the user may write what the job reads
