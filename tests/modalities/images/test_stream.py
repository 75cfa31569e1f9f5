"""Streamed images: results do not depend on the number of workers; broken files and dead workers are reported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from contrapose.modalities.images.imagenet100 import IMAGENET100
from contrapose.modalities.images.load import load
from contrapose.modalities.images.stream import Files, crops, whole
from contrapose.modalities.images.views import Recipe, Views
from contrapose.training import Run, Trainer, checkpoint
from contrapose.training.locks import lock_directory
from contrapose.workers import START_METHOD, process_context


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part in ("train", "test"):
        for label in ("cat", "dog"):
            (tmp_path / "mine" / part / label).mkdir(parents=True)
            for i in range(20):
                pixels = np.random.default_rng(i).integers(0, 256, (40 + i, 60, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "mine" / part / label / f"{i}.png")
    return tmp_path / "mine"


def run(folder: Path) -> Run:
    return Run(data=str(folder), stream=True, batch=16, epochs=2, knn=3, knn_every=2, views="simclr-cifar", metrics=12)


def hashes(directory: Path) -> list[int]:
    """Hash each tensor of the latest checkpoint."""
    latest = checkpoint.latest(directory / "checkpoints")
    assert latest is not None
    tensors = [tensor for _, tensor in sorted(latest.tensors.items())]
    return [hash(t.contiguous().view(-1).view(torch.uint8).numpy().tobytes()) for t in tensors]


def test_any_number_of_workers_gives_the_same_weights(folder: Path, tmp_path: Path) -> None:
    for workers in (0, 2):
        trainer = Trainer(run(folder), tmp_path / str(workers), say=lambda text: None, workers=workers)
        assert len(trainer.split.train) == 40
        assert trainer.train()["knn_top1"] >= 0
    assert hashes(tmp_path / "0") == hashes(tmp_path / "2")


def test_crops_are_those_of_the_batched_views(folder: Path) -> None:
    files, views = Files.of(folder / "train"), Views.named("simclr-cifar")
    (batch,) = crops(files, views, [[3, 17]], seed=1, epoch=2, workers=0)
    streamed = views.finish(batch, torch.tensor([3, 17]), seed=1, epoch=2)[0]
    for position, index in enumerate((3, 17)):
        expected = views.train(files.read(index), torch.tensor([index]), seed=1, epoch=2)[0]
        torch.testing.assert_close(streamed[:, position], expected[:, 0], rtol=0, atol=1e-5)
    assert next(iter(whole(files, Recipe(32), batch=8, workers=0))).shape == (8, 3, 32, 32)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_file_is_named(folder: Path, tmp_path: Path, workers: int) -> None:
    broken = folder / "train" / "cat" / "7.png"
    broken.write_bytes(broken.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"^data: image \d+, .*7\.png, cannot be read: "):
        Trainer(run(folder), tmp_path / "run", say=lambda text: None, workers=workers).train()


def children(process: int) -> list[int]:
    """Return the ids of the children of a process."""
    try:
        return [int(p) for p in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except FileNotFoundError:
        return []


def loaders(process: int) -> list[int]:
    """Return the data-loading workers of a process, which are the children of its fork server."""
    return [worker for server in children(process) for worker in children(server)]


def all_exit(processes: list[int], seconds: float = 30) -> bool:
    """Return whether all processes exit within the given time."""
    deadline = time.monotonic() + seconds
    while any(Path(f"/proc/{process}").exists() for process in processes) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not any(Path(f"/proc/{process}").exists() for process in processes)


def start_training(folder: Path, out: Path, *options: str) -> tuple[subprocess.Popen[bytes], list[int]]:
    """Start a streamed training; return it and its two workers once they are running."""
    arguments = ["--data", str(folder), "--stream", "--workers", "2", "--batch", "16", "--epochs", "1000", "--knn", "3",
                 "--knn-every", "1000", "--out", str(out / "run"), *options]  # fmt: skip
    with (out / "log").open("wb") as log:
        command = [sys.executable, "-m", "contrapose", "train", *arguments]
        main = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    while not (out / "run" / "records.jsonl").exists():
        assert main.poll() is None, (out / "log").read_text()
        time.sleep(0.05)
    while len(workers := loaders(main.pid)) < 2 and main.poll() is None:
        time.sleep(0.001)
    return main, workers


def test_no_process_is_forked_from_one_with_threads(folder: Path, tmp_path: Path) -> None:
    assert START_METHOD in ("forkserver", "spawn")
    assert process_context().get_start_method() == START_METHOD
    main, workers = start_training(folder, tmp_path)
    try:
        for process in (*children(main.pid), *workers):
            with suppress(FileNotFoundError):  # the workers of an epoch end with it
                assert not any("lock" in os.readlink(file) for file in Path(f"/proc/{process}/fd").iterdir())
        for worker in workers:  # each was forked by the fork server, not by the training process
            parent = int(Path(f"/proc/{worker}/stat").read_text().rsplit(")", 1)[1].split()[1])
            assert parent != main.pid
            assert b"multiprocessing.forkserver" in Path(f"/proc/{parent}/cmdline").read_bytes()
    finally:
        main.kill()
        main.wait()
    with lock_directory(tmp_path / "run") as acquired:  # dying workers do not keep the lock
        assert acquired
    assert all_exit(workers)  # workers exit when the training process has died


@pytest.mark.timeout(120)
def test_workers_start_after_a_large_product_with_threads(folder: Path) -> None:
    """Run in a separate process with several threads, whose locks would block a forked worker forever."""
    code = f"""
import torch
from pathlib import Path
from contrapose.modalities.images.stream import Files, crops
from contrapose.modalities.images.views import Views
if __name__ == "__main__":
    torch.set_num_threads(2)
    torch.randn(2000, 2000) @ torch.randn(2000, 2000)
    torch.bmm(torch.randn(64, 100, 100), torch.randn(64, 100, 100))
    files = Files.of(Path({str(folder / "train")!r}))
    batches = crops(files, Views.named("simclr-cifar"), [[3, 17], [5, 6]], seed=1, epoch=2, workers=2, timeout=60)
    print(len(list(batches)))
"""
    script = folder / "script.py"
    script.write_text(code)
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False)
    assert result.stdout == "2\n", result.stderr


def test_a_dead_worker_stops_the_training(folder: Path, tmp_path: Path) -> None:
    main, workers = start_training(folder, tmp_path)
    os.kill(workers[0], signal.SIGKILL)
    killed_at = time.perf_counter()
    assert main.wait(timeout=60) == 1, (tmp_path / "log").read_text()
    assert time.perf_counter() - killed_at < 30
    log = (tmp_path / "log").read_text()
    assert "contrapose: a data-loading worker died" in log
    assert "run the same command again to resume" in log
    assert all_exit(workers)


def test_a_worker_that_does_not_respond_stops_the_training(folder: Path, tmp_path: Path) -> None:
    main, workers = start_training(folder, tmp_path, "--worker-timeout", "4")
    os.kill(workers[0], signal.SIGSTOP)
    assert main.wait(timeout=60) == 1, (tmp_path / "log").read_text()
    log = (tmp_path / "log").read_text()
    assert "the 2 data-loading workers delivered no batch for 4 s" in log
    assert "Traceback" not in log
    assert all_exit(workers)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_group_saves_the_step(folder: Path, tmp_path: Path, number: int) -> None:
    main, workers = start_training(folder, tmp_path)
    os.killpg(main.pid, number)
    assert main.wait(timeout=60) == 128 + number, (tmp_path / "log").read_text()
    assert f"stopped by signal {int(number)} after step" in (tmp_path / "log").read_text()
    assert all_exit(workers)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_every_process_saves_the_step(folder: Path, tmp_path: Path, number: int) -> None:
    """As job schedulers and service managers send it: helpers outlive it, and end with the training."""
    main, workers = start_training(folder, tmp_path)
    helpers = children(main.pid)
    for process in (*workers, *helpers):
        with suppress(ProcessLookupError):  # the workers of an epoch end with it
            os.kill(process, number)
    time.sleep(1)
    main.send_signal(number)
    assert main.wait(timeout=60) == 128 + number, (tmp_path / "log").read_text()
    assert f"stopped by signal {int(number)} after step" in (tmp_path / "log").read_text()
    assert all_exit([*workers, *helpers])


def test_only_folders_stream(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="stream: only a folder"):
        Trainer(Run(stream=True), tmp_path, say=lambda text: None)


def test_some_classes_of_a_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("dog\n")
    split = load(str(folder), classes=str(tmp_path / "names.txt"))
    assert len(split.train) == 20
    with pytest.raises(ValueError, match=r"classes: 100 of 100 have no folder under .*: n01558993, .* and 90 more"):
        load(str(folder), classes="imagenet100")
    with pytest.raises(ValueError, match="classes: expected imagenet100 or a text file"):
        load(str(folder), classes="imagenet-100")
    assert len(set(IMAGENET100)) == 100


def test_a_folder_that_does_not_fit_in_memory() -> None:
    """Refused before a file is read: this one does not even exist."""
    files = Files("mine", (Path("a.png"),) * 200_000, None)
    with pytest.raises(
        ValueError, match=r"200,000 images of 1170 × 1170 pixels need 821\.3 GB .* --stream leaves them on disk"
    ):
        files.in_memory(Views.named("simclr", size=1024))
