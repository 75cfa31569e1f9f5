"""A streamed run of two processes that are both killed within an epoch resumes bit for bit, and on one process to rounding."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Promise
from double_precision import float64_trainer
from processes import run_in_process_group
from streaming import write_folder
from torch.multiprocessing.spawn import ProcessExitedException

from contrapose.lab.modalities.images.image_shards import write_shards
from contrapose.lab.training import Run
from contrapose.lab.training.checkpoints import checkpoint
from contrapose.lab.training.records.files import read_records

STEPS_PER_EPOCH, EPOCHS, KILLED = 5, 2, 8  # killed in the middle of the second epoch
TOLERANCE = 1e-11  # as in test_other_world_size.py


def train(rank: int, world_size: int, out: str) -> None:
    """Train to the end in the folder `out`, beside which the data is."""
    _train(rank, world_size, Path(out))


def train_and_kill(rank: int, world_size: int, out: str) -> None:
    """Train until rank 0 kills all processes, itself last."""
    Path(f"{out}.{rank}").write_text(str(os.getpid()))

    def on_step(progress: Any) -> None:
        if progress.step == KILLED:
            for other in reversed(range(world_size)):
                os.kill(int(Path(f"{out}.{other}").read_text()), signal.SIGKILL)

    _train(rank, world_size, Path(out), on_step=on_step, workers=1)


def _train(rank: int, world_size: int, folder: Path, **options: Any) -> None:
    os.environ |= {"WORLD_SIZE": str(world_size), "RANK": str(rank)}
    run = Run(
        data=str(folder.parent / "data"),
        stream=True,
        batch=8,
        epochs=EPOCHS,
        knn=3,
        knn_every=EPOCHS,
        views="simclr-cifar",
        metrics=0,
    )
    trainer = float64_trainer(run, folder, **options)
    assert trainer.steps_per_epoch == STEPS_PER_EPOCH
    trainer.train()


def outcome(folder: Path, step: int = STEPS_PER_EPOCH * EPOCHS) -> dict[str, torch.Tensor]:
    """Return the losses of the epochs, and what the last checkpoint holds."""
    saved = checkpoint.latest(folder / "checkpoints")
    assert saved is not None
    assert saved.step == step
    losses = torch.tensor([record["loss"] for record in read_records(folder)], dtype=torch.float64)
    return {"losses": losses, **saved.tensors}


@pytest.mark.thorough
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("stored", ["tars", pytest.param("files", marks=pytest.mark.slow)])
def test_two_processes_killed_within_a_streamed_epoch(stored: str, tmp_path: Path, promise: Promise) -> None:
    written = write_folder(tmp_path / ("data" if stored == "files" else "files"))
    if stored == "tars":
        write_shards(written, tmp_path / "data", images_per_file=7)
    run_in_process_group(train, 2, tmp_path / "whole")
    with pytest.raises(ProcessExitedException, match="SIGKILL"):
        run_in_process_group(train_and_kill, 2, tmp_path / "two")
    assert outcome(tmp_path / "two", STEPS_PER_EPOCH)["losses"].shape == (
        1,
    )  # the steps after the first epoch are lost
    shutil.copytree(tmp_path / "two", tmp_path / "one")
    expected = outcome(tmp_path / "whole")
    for name, world_size, tolerance in (("two", 2, 0.0), ("one", 1, TOLERANCE)):
        run_in_process_group(train, world_size, tmp_path / name)
        resumed = outcome(tmp_path / name)
        assert resumed.keys() == expected.keys()
        for key, value in expected.items():
            assert resumed[key].dtype == value.dtype
            difference = (resumed[key].double() - value.double()).abs().flatten().tolist()
            assert max(difference, default=0.0) <= tolerance, (name, key)
        promise.case()
