"""Any number of loader workers gives the same weights; one that dies or hangs ends the run with a clear error and no orphan."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import Promise
from streaming import all_exit, start_training, streamed_run, write_folder

from contrapose.lab.modalities.images.image_shards import write_shards
from contrapose.lab.training import Trainer
from contrapose.lab.training.checkpoints import checkpoint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "mine")


@pytest.fixture(params=["files", "webdataset", "litdata"])
def files_or_shards(request: pytest.FixtureRequest, folder: Path) -> Path:
    if request.param == "files":
        return folder
    write_shards(folder, folder.parent / "shards", images_per_file=7, to=request.param)
    return folder.parent / "shards"


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
    numbers: tuple[int, ...], files_or_shards: Path, tmp_path: Path, promise: Promise
) -> None:
    for workers in numbers:
        trainer = Trainer(
            streamed_run(files_or_shards), tmp_path / str(workers), log=lambda text: None, workers=workers
        )
        assert len(trainer.split.train) == 40
        assert trainer.train()["knn_top1"] >= 0
        promise.case()
    assert len({hashes(tmp_path / str(workers)) for workers in numbers}) == 1


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_killed_within_an_epoch_and_resumed_with_other_workers(
    workers: int, files_or_shards: Path, tmp_path: Path, promise: Promise
) -> None:
    run = replace(streamed_run(files_or_shards), epochs=3, knn_every=3)
    Trainer(run, tmp_path / "whole", log=lambda text: None).train()
    code = f"""
import os, signal
from pathlib import Path
from contrapose.lab.training import Run, Trainer
def on_step(progress):
    if progress.step == 4:  # the second step of the second epoch
        os.kill(os.getpid(), signal.SIGKILL)
run = Run.load(Path({str(tmp_path / "whole" / "run.json")!r}))
Trainer(run, Path({str(tmp_path / "killed")!r}), on_step=on_step, log=print).train()
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    log: list[str] = []
    Trainer(run, tmp_path / "killed", log=log.append, workers=workers).train()
    assert any(text.startswith("resuming after step") for text in log)
    assert hashes(tmp_path / "killed") == hashes(tmp_path / "whole")
    promise.case()


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
    main, workers = start_training(folder, tmp_path, "--worker-timeout", "8")
    os.kill(workers[0], signal.SIGSTOP)
    stopped_at = time.perf_counter()
    assert main.wait(timeout=60) == 1, (tmp_path / "log").read_text()
    promise.case(time.perf_counter() - stopped_at)  # of which 8 are the timeout
    log = (tmp_path / "log").read_text()
    assert "the 2 data-loading workers delivered no batch for 8 s" in log
    assert "Traceback" not in log
    assert all_exit(workers)
