"""A full disk ends a training with one line, and leaves everything before it intact; damaged records are not read."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from contrapose.lab.studies.run_directory import RunDirectory
from contrapose.lab.training import Run
from contrapose.lab.training.checkpoints import checkpoint
from contrapose.lab.training.continuation import read_extensions
from contrapose.lab.training.records.files import (
    WriteFailed,
    append,
    drop_records_after,
    read_object,
    read_records,
    write_json_atomically,
)
from contrapose.lab.training.sources import recorded_data

RECORD = {"epoch": 1, "step": 4, "loss": 1.0, "seconds": 0.5}


def test_a_record_on_a_full_device(tmp_path: Path) -> None:
    """/dev/full is a device on which every write fails with ENOSPC."""
    (tmp_path / "records.jsonl").symlink_to("/dev/full")
    with pytest.raises(
        WriteFailed, match=r"records.jsonl could not be written \(no space left on device\); the last checkp"
    ):
        append(tmp_path, RECORD)


def test_a_json_file_on_a_full_device(tmp_path: Path) -> None:
    write_json_atomically(tmp_path / "data.json", {"images": 1})
    (tmp_path / "data.half").symlink_to("/dev/full")
    with pytest.raises(WriteFailed, match=r"data.json could not be written \(no space left on device\)"):
        write_json_atomically(tmp_path / "data.json", {"images": 2})
    assert json.loads((tmp_path / "data.json").read_text()) == {"images": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["data.json"]


def limit_files() -> None:
    """Limit the size of files, as a quota does: the next checkpoint does not fit."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))


@pytest.mark.thorough
@pytest.mark.parametrize("command", ["train", pytest.param("compare", marks=pytest.mark.slow)])
def test_a_checkpoint_on_a_full_disk(command: str, tmp_path: Path) -> None:
    arguments = ["--limit", "64", "--batch", "32", "--epochs", "2", "--knn", "3", "--metrics", "0", "--encoder", "tiny"]
    where = (
        ["--out", str(tmp_path / "run")] if command == "train" else ["--losses", "simclr", "--runs-dir", str(tmp_path)]
    )
    line = [sys.executable, "-m", "contrapose", command, *arguments, *where]
    if command == "compare":
        line += ["-o", str(tmp_path / "reports")]
    full = subprocess.run(line, capture_output=True, text=True, preexec_fn=limit_files, check=False)
    assert full.returncode == 1, full.stderr
    (message,) = full.stderr.splitlines()
    assert message.startswith("contrapose: ")
    assert (
        "checkpoints/step-00000002 could not be written (file too large); the last checkpoint is intact: free"
        in message
    )
    (folder,) = tmp_path.glob("*/checkpoints")
    assert list(folder.iterdir()) == []  # nothing that takes space or looks like a checkpoint
    assert not (folder.parent / "failure.json").exists()
    assert subprocess.run(line, capture_output=True, check=False).returncode == 0  # the same command, with space
    assert [record["epoch"] for record in RunDirectory(folder.parent).records()] == [1, 2]
    saved = checkpoint.latest(folder)
    assert saved is not None
    assert saved.step == 4


def test_lines_that_are_not_records(tmp_path: Path) -> None:
    """Half a line after a kill, another program's line, bytes that are no text."""
    lines = [
        json.dumps(RECORD).encode(),
        b"\xff\xfe\x00",
        b"[1, 2]",
        b'{"step": 4}',
        b'{"epoch": 1, "step": Infinity, "seconds": 1}',
        json.dumps({**RECORD, "epoch": 2, "step": 8}).encode(),
        b'{"epoch": 3, "st',
    ]
    (tmp_path / "records.jsonl").write_bytes(b"\n".join(lines))
    assert [record["epoch"] for record in read_records(tmp_path)] == [1, 2]
    assert drop_records_after(tmp_path, 4) == {4}
    assert (tmp_path / "records.jsonl").read_text() == json.dumps(RECORD) + "\n"


@pytest.mark.parametrize("name", ["run.json", "environment.json", "data.json", "extensions.json"])
def test_a_named_pipe_in_a_run_is_refused(name: str, tmp_path: Path) -> None:
    """Opening it would wait forever. A run may come from elsewhere."""
    os.mkfifo(tmp_path / name)
    read: dict[str, Callable[[Path], object]] = {
        "run.json": Run.load,
        "environment.json": read_object,
        "data.json": lambda path: recorded_data(path.parent),
        "extensions.json": lambda path: read_extensions(path.parent),
    }
    with pytest.raises(ValueError, match=re.escape(name)):
        read[name](tmp_path / name)


def test_a_device_in_a_checkpoint_is_damage(tmp_path: Path) -> None:
    """/dev/zero has no end, and would fill the memory."""
    for name in ("checkpoint.json", "tensors.safetensors"):
        folder = tmp_path / name / "step-00000001"
        folder.mkdir(parents=True)
        (folder / "checkpoint.json").write_text('{"sha256": ""}')
        (folder / "tensors.safetensors").write_bytes(b"")
        (folder / name).unlink()
        (folder / name).symlink_to("/dev/zero")
        assert checkpoint.read(folder) is None
