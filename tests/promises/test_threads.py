"""A run has the same bits with one job or two, and whatever OMP_NUM_THREADS says; a resumed run keeps its number of threads."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Promise

from contrapose.lab.studies.execute import run_tasks
from contrapose.lab.studies.measures import LinearProbe
from contrapose.lab.studies.run_directory import RunDirectory
from contrapose.lab.studies.task import Task
from contrapose.lab.training import Run, Stopped, Trainer
from contrapose.lab.training.checkpoints import checkpoint
from contrapose.lab.training.threads import available_cores

SETTINGS: dict[str, Any] = {"limit": 64, "batch": 32, "epochs": 2, "knn": 3, "knn_every": 2, "metrics": 20}
MEASURES = (LinearProbe("cacr", epochs=2),)


@pytest.fixture(autouse=True)
def _restored_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def outcome(folder: Path) -> str:
    """Return a hash of the weights, the optimiser's state, the records without their times, and the evaluations."""
    saved = checkpoint.latest(folder / "checkpoints")
    assert saved is not None
    digest = hashlib.sha256()
    for name in sorted(saved.tensors):
        digest.update(name.encode() + saved.tensors[name].contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    directory = RunDirectory(folder)
    records = [{k: v for k, v in record.items() if k not in ("seconds", "beside")} for record in directory.records()]
    digest.update(json.dumps([records, directory.evaluations()], sort_keys=True).encode())
    return digest.hexdigest()


def study_outcomes(root: Path, *, jobs: int, threads: int) -> list[str]:
    """Execute two runs in a process with so many threads, as OMP_NUM_THREADS would give it."""
    torch.set_num_threads(threads)
    tasks = [Task(Run(**SETTINGS, seed=seed), MEASURES, root) for seed in (0, 1)]
    assert run_tasks(tasks, jobs=jobs) == {}
    assert torch.get_num_threads() == threads  # the caller's number is restored
    return [outcome(task.folder) for task in tasks]


@pytest.mark.thorough
def test_one_and_two_jobs_one_and_two_threads(tmp_path: Path, promise: Promise) -> None:
    expected = study_outcomes(tmp_path / "alone", jobs=1, threads=1)
    for jobs, threads in ((1, 2), (2, 1)):
        assert study_outcomes(tmp_path / f"{jobs}-{threads}", jobs=jobs, threads=threads) == expected
        promise.case()


def test_the_number_of_threads_matters(tmp_path: Path) -> None:
    """Otherwise the test above could not fail; as a setting it gives the run another name."""
    runs = [Run(**SETTINGS, threads=threads) for threads in (1, 2)]
    for run in runs:
        Trainer(run, tmp_path / run.name, log=lambda text: None).train()
    assert outcome(tmp_path / runs[0].name) != outcome(tmp_path / runs[1].name)


def test_a_resumed_run_keeps_its_number(tmp_path: Path, promise: Promise) -> None:
    """Also on a machine with another number of cores, which is what the changed file looks like."""
    other, run = available_cores() + 1, Run(**SETTINGS)
    Trainer(Run(**SETTINGS, threads=other), tmp_path / "expected", log=lambda text: None).train()
    trainer = Trainer(run, tmp_path / "run", log=lambda text: None)
    path = tmp_path / "run" / "environment.json"
    assert json.loads(path.read_text())["threads"] == trainer.threads == available_cores()
    path.write_text(json.dumps(json.loads(path.read_text()) | {"threads": other}))
    stop_after_step_three(run, tmp_path / "run")
    Trainer(run, tmp_path / "run", log=lambda text: None).train()
    assert outcome(tmp_path / "run") == outcome(tmp_path / "expected")
    promise.case()


def stop_after_step_three(run: Run, folder: Path) -> None:
    def on_step(progress: Any) -> None:
        if progress.step == 3:
            trainer.requests(15)

    trainer = Trainer(run, folder, on_step, lambda text: None)
    with pytest.raises(Stopped):
        trainer.train()


@pytest.mark.parametrize("content", ["", "[]", '{"threads": 0}', '{"threads": "two"}', '{"threads": true}'])
def test_a_damaged_number_is_named(tmp_path: Path, content: str) -> None:
    Trainer(Run(**SETTINGS), tmp_path, log=lambda text: None)
    (tmp_path / "environment.json").write_text(content)
    with pytest.raises(ValueError, match=r"environment\.json does not say how many threads .* delete it"):
        Trainer(Run(**SETTINGS), tmp_path, log=lambda text: None)


@pytest.mark.parametrize(("name", "value"), [("OMP_THREAD_LIMIT", "1"), ("OMP_DYNAMIC", "TRUE")])
def test_limits_of_openmp_are_refused(tmp_path: Path, name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"threads: {name}={value} .* unset it"):
        Trainer(Run(**SETTINGS, threads=2), tmp_path / "run", log=lambda text: None)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_any_omp_num_threads(tmp_path: Path, promise: Promise) -> None:
    """The command line, with one job and two, and with what the environment asks for."""
    outcomes = set()
    for jobs, threads in ((1, "1"), (1, "3"), (2, "1"), (2, "")):
        root = tmp_path / f"{jobs}-{threads}"
        options = ["--jobs", str(jobs), "--runs-dir", str(root / "runs"), "-o", str(root / "reports")]
        environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
        environment |= {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads} if threads else {}
        command = [sys.executable, "-m", "contrapose", "study", "run", "behaviour/equation6", *options]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        folders = sorted(path.parent for path in root.glob("runs/*/run.json"))
        outcomes.add(tuple(outcome(folder) for folder in folders))
        promise.case()
    assert len(outcomes) == 1
