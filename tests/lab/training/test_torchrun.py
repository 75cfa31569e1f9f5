"""Two processes under torchrun train like one process: the batch is split between them and batch norms are synchronised."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from processes import TORCHRUN, run_in_process_group

from contrapose.lab.modalities import Split
from contrapose.lab.training import Run, Stopped, Trainer
from contrapose.lab.training.checkpoints import checkpoint
from contrapose.lab.training.checkpoints.kept import kept_epochs
from contrapose.lab.training.eager import EagerSteps
from contrapose.lab.training.records.extra_metrics import RecordedMeasure

ARGUMENTS = [
    "--limit",
    "64",
    "--metrics",
    "0",
    "--batch",
    "32",
    "--epochs",
    "3",
    "--knn",
    "5",
    "--knn-every",
    "3",
    "--optimiser",
    "sgd",
    "--lr",
    "0.01",
]


WHOLE = ("--batch", "16", "--accumulate", "2", "--grad-cache")


@pytest.mark.thorough
@pytest.mark.parametrize(("framework", "precision", "options"), [
    ("simclr", "fp32", ()), pytest.param("simclr", "bf16", (), marks=pytest.mark.slow),
    pytest.param("moco", "fp32", (), marks=pytest.mark.slow), pytest.param("memory-bank", "fp32", (), marks=pytest.mark.slow),
    pytest.param("simclr", "fp32", WHOLE, marks=pytest.mark.slow),
])  # fmt: skip
def test_two_processes_equal_one(framework: str, precision: str, options: tuple[str, ...], tmp_path: Path) -> None:
    for name, start in (
        ("one", [sys.executable, "-m", "contrapose"]),
        (
            "two",
            TORCHRUN,
        ),
    ):
        command = [*start, "train", *ARGUMENTS, "--framework", framework, "--precision", precision, "--queue", "128"]
        command += [*options, "--out", str(tmp_path / name)]
        completed = subprocess.run(command, capture_output=True, text=True)
        assert completed.returncode == 0, completed.stderr
    one, two = (
        [json.loads(line) for line in (tmp_path / name / "records.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    )
    assert [r["step"] for r in two] == [2, 4, 6]
    # In float32 untrained batch norms amplify rounding; tests/promises/test_synchronised.py shows equality in float64.
    assert two[0]["loss"] == pytest.approx(one[0]["loss"], rel=1e-4 if precision == "fp32" else 0.02)
    assert checkpoint.latest(tmp_path / "two" / "checkpoints") is not None


def train_until_signal(rank: int, world_size: int, out: str) -> None:
    """Train; the second process receives a signal in the middle of its third step."""
    os.environ |= {"WORLD_SIZE": str(world_size), "RANK": str(rank)}
    trainer = Trainer(Run(limit=64, batch=8, epochs=2, knn=5, metrics=0), Path(out), log=lambda text: None)
    assert isinstance(trainer.steps, EagerSteps)
    take_step = trainer.steps.step

    def step_with_signal(batches: Any, epoch: int, step: int) -> float:
        loss = take_step(batches, epoch, step)
        if rank == 1 and step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return loss

    trainer.steps.step = step_with_signal  # type: ignore[method-assign]
    with pytest.raises(Stopped, match="after step 3"):
        trainer.train()


def train_with_measures(rank: int, world_size: int, out: str) -> None:
    """Train, and check that this process takes the recorded measures, so that no other one has to wait for it."""
    os.environ |= {"WORLD_SIZE": str(world_size), "RANK": str(rank)}
    run = Run(
        limit=64, batch=8, epochs=2, knn=5, metrics=0, extra_metrics=("entropy:2:16@1", "linear:cacr:1@2"), keep=(2,)
    )
    trainer, taken = Trainer(run, Path(out), log=lambda text: None), []
    take = trainer.model.take

    def counted(measure: RecordedMeasure, split: Split) -> dict[str, float]:
        taken.append(measure.text)
        return take(measure, split)

    trainer.model.take = counted  # type: ignore[method-assign]
    trainer.train()
    assert taken == ["entropy:2:16@1", "entropy:2:16@1", "linear:cacr:1@2"]


@pytest.mark.slow
def test_all_processes_take_the_recorded_measures(tmp_path: Path) -> None:
    run_in_process_group(train_with_measures, 2, tmp_path / "run")
    records = [json.loads(line) for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines()]
    assert ["linear:cacr:1" in record for record in records] == [False, True]
    assert kept_epochs(tmp_path / "run") == [2]


@pytest.mark.thorough
def test_a_signal_to_one_process_stops_all_at_the_same_step(tmp_path: Path) -> None:
    run_in_process_group(train_until_signal, 2, tmp_path / "run")
    saved = checkpoint.latest(tmp_path / "run" / "checkpoints")
    assert saved is not None
    assert saved.step == 3
