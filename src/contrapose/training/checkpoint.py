"""Checkpoints: a new directory each time, verified when read, never pickle.

    step-00000120/
        tensors.safetensors     weights, running statistics, queues, banks, optimiser state
        checkpoint.json         the step and the sha256 of the tensors

Written under a temporary name, flushed to the disk and renamed, so that a directory of this name is whole. The newest
that verifies is used; an unreadable one is passed over with a word.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

KEPT = 2  # the newest, and one to fall back on


@dataclass(frozen=True)
class Checkpoint:
    """A step, and the tensors of the moment after it."""

    step: int
    tensors: Mapping[str, Tensor]


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint beside the earlier ones; only then drop the oldest."""
    from safetensors.torch import save as to_bytes

    final = folder / f"step-{checkpoint.step:08d}"
    if final.exists() and _read(final) is not None:
        return final
    folder.mkdir(parents=True, exist_ok=True)
    half = folder / f".{final.name}.{os.getpid()}"
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir()
    payload = to_bytes({name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()})
    about = {"step": checkpoint.step, "sha256": hashlib.sha256(payload).hexdigest()}
    _write(half / "tensors.safetensors", payload)
    _write(half / "checkpoint.json", json.dumps(about).encode())
    _flush(half)
    shutil.rmtree(final, ignore_errors=True)  # only an unreadable one can be here
    half.rename(final)
    _flush(folder)
    for old in _found(folder)[KEPT:]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def latest(folder: Path, say: Any = print) -> Checkpoint | None:
    """The newest checkpoint that verifies, or None."""
    for path in _found(folder):
        checkpoint = _read(path)
        if checkpoint is not None:
            return checkpoint
        say(f"{path} is damaged; using the one before it")
    return None


def _found(folder: Path) -> list[Path]:
    return sorted((p for p in folder.glob("step-*") if p.is_dir()), reverse=True)


def _read(path: Path) -> Checkpoint | None:
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    try:
        about = json.loads((path / "checkpoint.json").read_bytes())
        payload = (path / "tensors.safetensors").read_bytes()
        if hashlib.sha256(payload).hexdigest() != about["sha256"]:
            return None
        return Checkpoint(int(about["step"]), from_bytes(payload))
    except (OSError, ValueError, KeyError, TypeError, SafetensorError):
        return None


def _write(path: Path, payload: bytes) -> None:
    with path.open("wb") as file:
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())


def _flush(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def collect(network: nn.Module, optimiser: Optimizer) -> dict[str, Tensor]:
    """All state of a training as one flat dictionary of tensors."""
    tensors = {f"state.{name}": tensor for name, tensor in network.state_dict().items()}
    for place, state in optimiser.state_dict()["state"].items():
        for name, value in state.items():
            tensors[f"optimiser.{place}.{name}"] = torch.as_tensor(value)
    return tensors


def restore(network: nn.Module, optimiser: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put the state back; names and shapes must be the same."""
    network.load_state_dict(
        {name.removeprefix("state."): t for name, t in tensors.items() if name.startswith("state.")}
    )
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimiser."):
            _, place, key = name.split(".", 2)
            state.setdefault(int(place), {})[key] = tensor
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
    for parameter, kept in optimiser.state.items():  # files know no memory layout, and fused optimisers want one
        for name, value in kept.items():
            if value.shape == parameter.shape and value.stride() != parameter.stride():
                kept[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
