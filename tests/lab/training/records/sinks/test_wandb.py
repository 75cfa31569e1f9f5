"""A W&B run is offline, has the settings as its configuration, and is continued when the run is resumed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contrapose.lab.training import Run
from contrapose.lab.training.records.recorder import Recorder
from contrapose.lab.training.records.sinks.wandb import DEFAULTS

pytest.importorskip("wandb", reason="needs the extra `wandb`", exc_type=ImportError)
SCRIPT = """
import os
import sys
import time
from pathlib import Path
from contrapose.lab.training import Run
from contrapose.lab.training.records.recorder import Recorder

recorder = Recorder(Path(sys.argv[1]), ["wandb"], print)
recorder.resume(Run(), 0)
recorder.append({"epoch": 1, "step": 4, "loss": 1.0, "seconds": 0.5})
if len(sys.argv) > 2:
    time.sleep(float(sys.argv[2]))
    os.kill(os.getpid(), 9)
recorder.close()
"""
_BLOCK = 2**15  # of the file's format, which is that of a LevelDB log


@pytest.fixture(autouse=True)
def _no_settings_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in DEFAULTS:
        monkeypatch.setenv(name, "")  # so that it is restored after the test
        monkeypatch.delenv(name)
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "user"))


def records(path: Path) -> Iterator[Any]:
    """Yield the records in a .wandb file."""
    from wandb.proto import wandb_internal_pb2

    content, position, parts = path.read_bytes(), 7, b""
    while position + 7 <= len(content):
        if _BLOCK - position % _BLOCK < 7:  # the rest of a block has no room for a header
            position += _BLOCK - position % _BLOCK
        length, kind = int.from_bytes(content[position + 4 : position + 6], "little"), content[position + 6]
        parts += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole record, or its last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


def train(folder: Path, start: int, steps: list[int]) -> list[str]:
    """Write records as a run does that is resumed after step `start`; return the messages."""
    messages = list[str]()
    recorder = Recorder(folder, ["wandb"], messages.append)
    recorder.resume(Run(), start)
    for step in steps:
        recorder.append({"epoch": step // 4, "step": step, "loss": 1 / step, "seconds": 0.5})
    recorder.close()
    return messages


@pytest.mark.thorough
def test_a_resumed_run_continues_the_same_run(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (message,) = train(folder, 0, [4, 8])
    run_id = json.loads((folder / "wandb.json").read_text())["id"]
    assert message == f"wandb: offline; to upload the run: wandb sync {folder}/wandb/offline-run-*-{run_id}"
    train(folder, 4, [8, 12])
    first, second = ([*records(file)] for file in sorted(folder.glob(f"wandb/offline-run-*-{run_id}/*.wandb")))
    assert os.environ["WANDB_MODE"] == "offline"
    for segment, expected in ((first, [4, 8]), (second, [12])):
        (run,) = [record.run for record in segment if record.HasField("run")]
        assert (run.run_id, run.display_name, run.project) == (run_id, "mine", "contrapose")
        settings = {update.key: json.loads(update.value_json) for update in run.config.update}
        assert {**Run().describe(), **settings} == settings
        points = [
            {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            for record in segment
            if record.HasField("history")
        ]
        assert [(point["_step"], point["loss"]) for point in points] == [(step, 1 / step) for step in expected]


@pytest.mark.thorough
@pytest.mark.parametrize(("mode", "lines"), [("disabled", 0), ("never", 1)])
def test_a_mode_of_the_user(mode: str, lines: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own, because W&B reads its variables once."""
    monkeypatch.setenv("WANDB_MODE", mode)
    (tmp_path / "mine").mkdir()
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "mine")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(printed) == lines
    assert all(line.startswith("wandb failed and shows no further records: ") for line in printed)
    assert not (tmp_path / "mine" / "wandb").exists()


@pytest.mark.thorough
def test_a_kill_loses_at_most_the_last_seconds(tmp_path: Path) -> None:
    """By default, W&B writes every 15 seconds, and keeps the last record until the next one."""
    assert subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path), "4"], check=False).returncode == -9
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert sum(record.HasField("history") for record in records(file)) == 1
