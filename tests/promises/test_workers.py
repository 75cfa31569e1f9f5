"""Any number of loader workers gives the same weights; one that dies or hangs ends the run with a clear error and no orphan."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import torch
from conftest import Promise
from streaming import all_exit, start_training, streamed_run, write_folder

from contrapose.lab.training import Trainer
from contrapose.lab.training.checkpoints import checkpoint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "mine")


def hashes(directory: Path) -> tuple[int, ...]:
    """Hash each tensor of the latest checkpoint."""
    latest = checkpoint.latest(directory / "checkpoints")
    assert latest is not None
    tensors = [tensor for _, tensor in sorted(latest.tensors.items())]
    return tuple(hash(t.contiguous().view(-1).view(torch.uint8).numpy().tobytes()) for t in tensors)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores
@pytest.mark.parametrize("numbers", [(0, 2), pytest.param((0, 1, 4), marks=pytest.mark.slow)], ids=str)
def test_any_number_of_workers_gives_the_same_weights(
    numbers: tuple[int, ...], folder: Path, tmp_path: Path, promise: Promise
) -> None:
    for workers in numbers:
        trainer = Trainer(streamed_run(folder), tmp_path / str(workers), log=lambda text: None, workers=workers)
        assert len(trainer.split.train) == 40
        assert trainer.train()["knn_top1"] >= 0
        promise.case()
    assert len({hashes(tmp_path / str(workers)) for workers in numbers}) == 1


@pytest.mark.thorough
def test_a_dead_worker_stops_the_training(folder: Path, tmp_path: Path, promise: Promise) -> None:
    main, workers = start_training(folder, tmp_path)
    os.kill(workers[0], signal.SIGKILL)
    killed_at = time.perf_counter()
    assert main.wait(timeout=60) == 1, (tmp_path / "log").read_text()
    promise.case(time.perf_counter() - killed_at)
    assert promise.worst < 30
    log = (tmp_path / "log").read_text()
    assert "contrapose: a data-loading worker died" in log
    assert "run the same command again to resume" in log
    assert all_exit(workers)


@pytest.mark.thorough
def test_a_worker_that_does_not_respond_stops_the_training(folder: Path, tmp_path: Path, promise: Promise) -> None:
    main, workers = start_training(folder, tmp_path, "--worker-timeout", "4")
    os.kill(workers[0], signal.SIGSTOP)
    stopped_at = time.perf_counter()
    assert main.wait(timeout=60) == 1, (tmp_path / "log").read_text()
    promise.case(time.perf_counter() - stopped_at)  # of which 4 are the timeout
    log = (tmp_path / "log").read_text()
    assert "the 2 data-loading workers delivered no batch for 4 s" in log
    assert "Traceback" not in log
    assert all_exit(workers)
