"""The JSON files of a run: one record per epoch, and the environment in which it was trained."""

from __future__ import annotations

import json
import os
import platform
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from contrapose import __version__


def append(folder: Path, record: dict[str, Any]) -> None:
    """Append a record to records.jsonl, and to the curves for TensorBoard if it is installed."""
    with (folder / "records.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")
    if find_spec("tensorboard") is not None:
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(folder / "tensorboard")) as writer:
            for name, value in record.items():
                if name not in ("step", "epoch") and value is not None:
                    writer.add_scalar(name, value, record["step"])


def last_evaluation(folder: Path, step: int) -> dict[str, float]:
    """Return the numbers of the last record with an evaluation, up to a step; empty if there is none."""
    path = folder / "records.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    records = [json.loads(line) for line in lines if (_step_of(line) or step + 1) <= step]
    evaluated = [record for record in records if record.keys() & {"knn_top1", "uniformity"}]
    last = evaluated[-1] if evaluated else {}
    return {name: value for name, value in last.items() if value is not None and name not in ("seconds", "beside")}


def drop_records_after(folder: Path, step: int) -> None:
    """Drop the records of steps that will be taken again, and any line that is incomplete."""
    path = folder / "records.jsonl"
    if path.exists():
        # A line that cannot be read was cut off by a kill; its epoch is not complete.
        kept = [line for line in path.read_text().splitlines() if (_step_of(line) or step + 1) <= step]
        # Written to a second file first: if the process is killed here, no record is lost.
        temporary = path.with_suffix(".half")
        temporary.write_text("".join(line + "\n" for line in kept))
        temporary.rename(path)


def _step_of(line: str) -> int | None:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return None


def write_json_atomically(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file that is complete whenever it exists: it is written under another name and renamed."""
    temporary = path.with_suffix(".half")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    temporary.rename(path)


def environment(device: torch.device) -> dict[str, Any]:
    """Return the machine and the versions, on which the numbers of a run depend."""
    return {
        "contrapose": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
    }
