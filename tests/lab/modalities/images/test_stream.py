"""Streamed images: results do not depend on the number of workers; broken files and dead workers are reported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from streaming import all_exit, children, loaders, start_training, streamed_run, write_folder

from contrapose.child_processes import START_METHOD, process_context
from contrapose.lab.modalities.images.imagenet100 import IMAGENET100
from contrapose.lab.modalities.images.load import load
from contrapose.lab.modalities.images.stream import Files, StreamedImages, whole
from contrapose.lab.modalities.images.views import Recipe, Views
from contrapose.lab.training import Run, Trainer
from contrapose.lab.training.locks import lock_directory


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "mine")


def test_crops_are_those_of_the_batched_views(folder: Path) -> None:
    files, views = Files.of(folder / "train"), Views.named("simclr-cifar")
    (batch,) = StreamedImages(files, views, torch.device("cpu"), 0, 60.0).stage([[3, 17]], seed=1, epoch=2)
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
        Trainer(streamed_run(folder), tmp_path / "run", log=lambda text: None, workers=workers).train()


@pytest.mark.thorough
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


@pytest.mark.thorough
@pytest.mark.timeout(120)
def test_workers_start_after_a_large_product_with_threads(folder: Path) -> None:
    """Run in a separate process with several threads, whose locks would block a forked worker forever."""
    code = f"""
import torch
from pathlib import Path
from contrapose.lab.modalities.images.stream import Files, StreamedImages
from contrapose.lab.modalities.images.views import Views
if __name__ == "__main__":
    torch.set_num_threads(2)
    torch.randn(2000, 2000) @ torch.randn(2000, 2000)
    torch.bmm(torch.randn(64, 100, 100), torch.randn(64, 100, 100))
    files = Files.of(Path({str(folder / "train")!r}))
    reader = StreamedImages(files, Views.named("simclr-cifar"), torch.device("cpu"), 2, 60.0)
    print(len(list(reader.stage([[3, 17], [5, 6]], seed=1, epoch=2))))
"""
    script = folder / "script.py"
    script.write_text(code)
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False)
    assert result.stdout == "2\n", result.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_to_the_group_saves_the_step(folder: Path, tmp_path: Path, number: int) -> None:
    main, workers = start_training(folder, tmp_path)
    os.killpg(main.pid, number)
    assert main.wait(timeout=60) == 128 + number, (tmp_path / "log").read_text()
    assert f"stopped by signal {int(number)} after step" in (tmp_path / "log").read_text()
    assert all_exit(workers)


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
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


@pytest.mark.thorough
def test_workers_serve_all_epochs_and_end_with_the_training(folder: Path, tmp_path: Path) -> None:
    trainer, seen = Trainer(streamed_run(folder), tmp_path / "run", log=lambda text: None, workers=2), list[list[int]]()
    trainer.on_step = lambda progress: seen.append(loaders(os.getpid()))
    trainer.train()
    assert len(seen) == 4  # two epochs of two steps
    assert len(seen[0]) == 2
    assert all(workers == seen[0] for workers in seen)
    assert all_exit(seen[0])


@pytest.mark.thorough
def test_a_reader_that_was_not_read_to_its_end_starts_anew(folder: Path) -> None:
    reader = StreamedImages(Files.of(folder / "train"), Views.named("simclr-cifar"), torch.device("cpu"), 2, 60.0)
    stopped = reader.stage([[0, 1], [2, 3], [4, 5]], seed=0, epoch=0)
    first = next(stopped)[0]
    stopped.close()
    again = [batch[0] for batch in reader.stage([[0, 1], [2, 3]], seed=0, epoch=0)]
    reader.close()
    assert torch.equal(again[0], first)
    assert len(again) == 2


def test_only_folders_stream(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="stream: only a folder"):
        Trainer(Run(stream=True), tmp_path, log=lambda text: None)


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
        ValueError,
        match=r"200,000 images of 1170 × 1170 pixels need 821\.3 GB .* --stream or --pack leaves them on disk",
    ):
        files.in_memory(Views.named("simclr", size=1024))
