"""A folder of images, a run that streams them, and the processes of such a training."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image

from contrapose.lab.training import Run


def write_folder(folder: Path) -> Path:
    """Write 20 images of each of two classes, for training and for test."""
    for part in ("train", "test"):
        for label in ("cat", "dog"):
            (folder / part / label).mkdir(parents=True)
            for i in range(20):
                pixels = np.random.default_rng(i).integers(0, 256, (40 + i, 60, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / part / label / f"{i}.png")
    return folder


def streamed_run(folder: Path) -> Run:
    return Run(data=str(folder), stream=True, batch=16, epochs=2, knn=3, knn_every=2, views="simclr-cifar", metrics=12)


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
