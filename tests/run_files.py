"""What a run has written: to compare a run that was interrupted with one that was not."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch

from contrapose.lab.training.checkpoints import checkpoint


def records(folder: Path) -> list[dict[str, object]]:
    """Return the records without their times."""
    lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def steps_saved(folder: Path) -> list[int]:
    return [int(path.name[5:]) for path in (folder / "checkpoints").glob("step-*")]


def weights(folder: Path) -> str:
    """Return a hash of everything in the latest checkpoint: network, state, optimiser."""
    saved = checkpoint.latest(folder / "checkpoints")
    assert saved is not None
    digest = hashlib.sha256(str(saved.step).encode())
    for name in sorted(saved.tensors):
        digest.update(name.encode() + saved.tensors[name].contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def epochs_done(folder: Path) -> int:
    path = folder / "records.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0
