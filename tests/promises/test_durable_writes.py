"""A checkpoint survives a kill inside its write and a power failure after it; a writer that copies is found out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import Promise

from contrapose.lab.training.checkpoints import checkpoint
from contrapose.lab.training.checkpoints.checkpoint import Checkpoint, latest, save

# Saves one checkpoint of 64 MB after the other. The negative control copies where it should rename.
WRITER = """
import shutil, sys, torch
from pathlib import Path
from contrapose.lab.training.checkpoints.checkpoint import Checkpoint, save
if sys.argv[2] == "copy":
    Path.rename = lambda self, target: shutil.copytree(self, target)
for step in range(1, 10_000):
    save(Path(sys.argv[1]), Checkpoint(step, {"a": torch.full((16_000_000,), float(step))}))
"""
AIMS: dict[str, Callable[[Path], bool]] = {
    "temporary": lambda folder: any(folder.glob(".step-*/tensors.safetensors")),
    "final": lambda folder: any(folder.glob("step-00000002")),
}


def kill_writer(folder: Path, writer: str, aim: str) -> None:
    """Start a writer and kill it (SIGKILL) when the second checkpoint has the name at which the kill aims."""
    child = subprocess.Popen([sys.executable, "-c", WRITER, str(folder), writer])
    try:
        while not (folder / "step-00000001").exists() or not AIMS[aim](folder):
            assert child.poll() is None
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait(timeout=60)


def incomplete(folder: Path) -> list[str]:
    """Return the directories with the final name of a checkpoint that are not complete."""
    return [path.name for path in folder.glob("step-*") if checkpoint.read(path) is None]


@pytest.mark.thorough
@pytest.mark.parametrize("aim", AIMS)
def test_a_kill_inside_a_write(aim: str, tmp_path: Path, promise: Promise) -> None:
    kill_writer(tmp_path, "rename", aim)
    assert incomplete(tmp_path) == []
    saved = latest(tmp_path)
    assert saved is not None
    assert bool((saved.tensors["a"] == saved.step).all())
    if aim == "temporary":
        assert list(tmp_path.glob(".step-*"))  # otherwise the kill came after the write
    promise.case()


@pytest.mark.thorough
def test_a_writer_that_copies_is_found_out(tmp_path: Path) -> None:
    """The negative control of the test above: a copy is incomplete for a while under its final name."""
    for number in range(5):  # on a busy machine the kill may come too late
        folder = tmp_path / str(number)
        kill_writer(folder, "copy", "final")
        if incomplete(folder):
            return
    pytest.fail("five kills aimed at a copy found it complete each time")


def test_everything_is_flushed_before_and_after_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, promise: Promise
) -> None:
    """After a power failure, only what was flushed in this order is certain to be there."""
    folder, calls = tmp_path / "checkpoints", list[str]()
    flush, rename = os.fsync, os.rename

    def record_flush(handle: int) -> None:
        flush(handle)
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        calls.append(f"{path.name} {path.stat().st_size}" if path.is_file() else f"directory {path.name}")

    def record_rename(source: Path, target: Path) -> None:
        rename(source, target)
        calls.append(f"{Path(source).name} -> {Path(target).name}")

    monkeypatch.setattr(os, "fsync", record_flush)
    monkeypatch.setattr(os, "rename", record_rename)
    target = save(folder, Checkpoint(7, {"a": torch.arange(1000)}))
    temporary = f".step-00000007.{os.getpid()}"
    sizes = {f"{path.name} {path.stat().st_size}" for path in target.iterdir()}  # flushed with all of their content
    assert set(calls[:2]) == sizes
    assert calls[2:] == [f"directory {temporary}", f"{temporary} -> step-00000007", "directory checkpoints"]
    promise.case()
