"""A job's file: every mistake is refused with the file's name and the key, and what it asks for becomes options of sbatch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fake_slurm import install, options

from contrapose.lab.jobs.description import JobDescription, check_executor, read_description
from contrapose.lab.jobs.resumable import Resumable

FILE = """
hours = 1.5
partition = "gpu"
account = "vision"
nodes = 2
gpus_per_node = 4
cpus_per_task = 8
save_seconds = 300
setup = ["module load cuda", "source env/bin/activate"]

[sbatch]
qos = "low"
mail_user = "me@example.org"
exclusive = true
overcommit = false
"""


def write(folder: Path, text: str) -> str:
    (folder / "job.toml").write_text(text)
    return f"slurm:{folder / 'job.toml'}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "hours: expected the time limit"),
        ("hours = -1", "hours: expected a number above 0"),
        ("hours = 1\nnode = 2", "node: no such key; did you mean 'nodes'"),
        ("hours = 1\nqos = 'low'", r"qos: no such key \(it may set .*\[sbatch\]"),
        ("hours = 1\nnodes = 0", "nodes: expected a whole number of at least 1, got 0"),
        ("hours = 1\npartition = 3", "partition: expected a text, got 3"),
        ("hours = 1\nsetup = 'module load cuda'", "setup: expected a list of texts"),
        ("hours = 1\n[sbatch]\nx = [1]", "sbatch: expected a table of options"),
        ("hours = 1\n[sbatch]\nntasks_per_node = 2", "ntasks-per-node cannot be set here; set tasks_per_node above"),
        ("hours = 1\n[sbatch]\narray = '0-3'", "array cannot be set here, since submitit sets it"),
        ("hours = ", "is not valid TOML"),
    ],
)
def test_a_file_with_a_mistake(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message) as error:
        read_description(write(tmp_path, text))
    assert "job.toml" in str(error.value)


def test_a_file_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"executor: .*none\.toml cannot be read"):
        read_description(f"slurm:{tmp_path / 'none.toml'}")


def test_without_submitit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ValueError, match=r"executor: slurm:FILE needs submitit: pip install .*\[slurm\]"):
        read_description(write(tmp_path, "hours = 1"))


def test_names_of_executors() -> None:
    choices = ("local", "ray", "slurm:FILE")
    for executor in ("local", "ray", "slurm:job.toml"):
        check_executor(executor, *choices)
    for executor in ("slurm", "local:job.toml", "cloud", ":x"):
        with pytest.raises(ValueError, match="executor: expected local, ray or slurm:FILE, got"):
            check_executor(executor, *choices)


def test_processes() -> None:
    assert JobDescription("slurm", hours=1).world_size == 1
    assert JobDescription("slurm", hours=1, nodes=2, gpus_per_node=4).world_size == 8
    assert JobDescription("slurm", hours=1, nodes=2, gpus_per_node=4, tasks_per_node=1).world_size == 2


def test_options_of_sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit", reason="submitit is not installed (the extra `slurm`)")
    description = read_description(write(tmp_path, FILE))
    works = [Resumable(print)]
    monkeypatch.setenv("PATH", str(tmp_path))  # without Slurm
    with pytest.raises(ValueError, match="executor: this machine has no srun"):
        description.submit(works, tmp_path / "jobs", name="mine")
    with pytest.raises(ValueError, match="executor: a local job has one node, this machine; got nodes = 2"):
        JobDescription("local", hours=1, nodes=2).submit(works, tmp_path / "jobs", name="mine")
    monkeypatch.undo()
    install(tmp_path / "slurm")
    monkeypatch.setenv("PATH", str(tmp_path / "slurm"), prepend=":")
    text = description._slurm(tmp_path / "jobs", "mine", None)._make_submission_file_text("work", "")
    given = options(text)
    log = given.pop("output")
    assert log == str(tmp_path / "jobs" / "%j_0_log.out")
    assert given == {
        "job-name": "mine", "time": "90", "partition": "gpu", "account": "vision", "nodes": "2", "ntasks-per-node": "4",
        "gpus-per-node": "4", "cpus-per-task": "8", "signal": "USR2@300", "requeue": "", "open-mode": "append",
        "qos": "low", "mail-user": "me@example.org", "exclusive": "",
    }  # fmt: skip
    assert text.index("module load cuda\nsource env/bin/activate") < text.index("srun")
    assert "--cpus-per-task=8 work" in text
    refused = JobDescription("slurm", hours=1, partition="nowhere")
    with pytest.raises(ValueError, match="Slurm did not accept the job: sbatch: error: invalid partition"):
        refused.submit(works, tmp_path / "jobs", name="mine")
