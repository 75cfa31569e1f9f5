"""What a run writes beside its weights: one line of numbers for each epoch, and where it was made."""

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
    """One more line of records.jsonl, and its curves for TensorBoard where that is installed."""
    with (folder / "records.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")
    if find_spec("tensorboard") is not None:
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(folder / "tensorboard")) as board:
            for name, value in record.items():
                if name not in ("step", "epoch") and value is not None:
                    board.add_scalar(name, value, record["step"])


def forget_after(folder: Path, step: int) -> None:
    """Records of steps that will be done again are dropped; a half-written last line too."""
    path = folder / "records.jsonl"
    if path.exists():
        kept = [line for line in path.read_text().splitlines() if (_step_of(line) or step + 1) <= step]
        half = path.with_suffix(".half")
        half.write_text("".join(line + "\n" for line in kept))
        half.rename(path)


def _step_of(line: str) -> int | None:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return None


def write_whole(path: Path, content: dict[str, Any]) -> None:
    """JSON that is there whole or not at all."""
    half = path.with_suffix(".half")
    half.write_text(json.dumps(content, indent=1) + "\n")
    half.rename(path)


def environment(device: torch.device) -> dict[str, Any]:
    """Machine and versions, for whoever reads the numbers."""
    return {
        "contrapose": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
    }
