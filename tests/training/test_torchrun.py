"""Two processes of torchrun train as one process does, with different data on each and synchronised batch norms."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from processes import in_group

from contrapose.training import Run, Stopped, Trainer, checkpoint
from contrapose.training.eager import EagerSteps

WORDS = [
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


@pytest.mark.parametrize(("framework", "precision"), [
    ("simclr", "fp32"), pytest.param("simclr", "bf16", marks=pytest.mark.slow),
    pytest.param("moco", "fp32", marks=pytest.mark.slow), pytest.param("memory-bank", "fp32", marks=pytest.mark.slow),
])  # fmt: skip
def test_two_processes_equal_one(framework: str, precision: str, tmp_path: Path) -> None:
    for name, start in (
        ("one", [sys.executable, "-m", "contrapose"]),
        (
            "two",
            [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc-per-node",
                "2",
                "-m",
                "contrapose",
            ],
        ),
    ):
        command = [*start, "train", *WORDS, "--framework", framework, "--precision", precision, "--queue", "128"]
        command += ["--out", str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    one, two = (
        [json.loads(line) for line in (tmp_path / name / "records.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    )
    assert [r["step"] for r in two] == [2, 4, 6]
    # In float32 rounding grows quickly through untrained batch norms; that the processes are exact is shown in float64.
    assert two[0]["loss"] == pytest.approx(one[0]["loss"], rel=1e-4 if precision == "fp32" else 0.02)
    assert checkpoint.latest(tmp_path / "two" / "checkpoints") is not None


def stopped_alone(rank: int, world: int, out: str) -> None:
    """A signal comes to the second process in the middle of its third step."""
    os.environ |= {"WORLD_SIZE": str(world), "RANK": str(rank)}
    trainer = Trainer(Run(limit=64, batch=8, epochs=2, knn=5, metrics=0), Path(out), say=lambda text: None)
    assert isinstance(trainer.steps, EagerSteps)
    one = trainer.steps.step

    def signalled(batches: Any, epoch: int, place: int) -> float:
        loss = one(batches, epoch, place)
        if rank == 1 and place == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return loss

    trainer.steps.step = signalled  # type: ignore[method-assign,assignment]
    with pytest.raises(Stopped, match="after step 3"):
        trainer.train()


def test_a_signal_to_one_process_stops_all_at_the_same_step(tmp_path: Path) -> None:
    in_group(stopped_alone, 2, tmp_path / "run")
    found = checkpoint.latest(tmp_path / "run" / "checkpoints")
    assert found is not None
    assert found.step == 3
