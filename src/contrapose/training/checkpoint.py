"""Save and load checkpoints: a new directory each, verified when read, and never a pickle.

    step-00000120/
        tensors.safetensors     weights, running statistics, queues, banks, optimiser state
        checkpoint.json         the step and the sha256 of the tensors

A checkpoint is written under a temporary name, flushed to the disk and renamed, so that a directory with its final name is
complete. The newest one that verifies is loaded; a damaged one is skipped with a message.
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

CHECKPOINTS_KEPT = 2  # the newest, and one to fall back on


@dataclass(frozen=True)
class Checkpoint:
    """A step, and the state after it as named tensors."""

    step: int
    tensors: Mapping[str, Tensor]


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint, then delete all but the newest two; return its directory."""
    from safetensors.torch import save as to_bytes

    target = folder / f"step-{checkpoint.step:08d}"
    if target.exists() and _read(target) is not None:
        return target
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{target.name}.{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)  # a write that failed earlier in this process
    temporary.mkdir()
    payload = to_bytes({name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()})
    description = {"step": checkpoint.step, "sha256": hashlib.sha256(payload).hexdigest()}
    _write(temporary / "tensors.safetensors", payload)
    _write(temporary / "checkpoint.json", json.dumps(description).encode())
    _flush(temporary)  # before the rename: after a power failure the new name must not point to missing data
    shutil.rmtree(target, ignore_errors=True)  # at this point it can only be a damaged one
    temporary.rename(target)
    _flush(folder)
    for old in _newest_first(folder)[CHECKPOINTS_KEPT:]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def latest(folder: Path, say: Any = print) -> Checkpoint | None:
    """Return the newest checkpoint that verifies, or None if there is none."""
    for path in _newest_first(folder):
        checkpoint = _read(path)
        if checkpoint is not None:
            return checkpoint
        say(f"{path} is damaged; trying the checkpoint before it")
    return None


def _newest_first(folder: Path) -> list[Path]:
    return sorted((p for p in folder.glob("step-*") if p.is_dir()), reverse=True)


def _read(path: Path) -> Checkpoint | None:
    """Return a checkpoint, or None if any part of it is missing or damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    try:
        description = json.loads((path / "checkpoint.json").read_bytes())
        payload = (path / "tensors.safetensors").read_bytes()
        if hashlib.sha256(payload).hexdigest() != description["sha256"]:
            return None
        return Checkpoint(int(description["step"]), from_bytes(payload))
    except (OSError, ValueError, KeyError, TypeError, SafetensorError):
        return None


def _write(path: Path, payload: bytes) -> None:
    with path.open("wb") as file:
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())


def _flush(folder: Path) -> None:
    """Flush a directory's entries to the disk: fsync of a file does not include its name."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def collect(network: nn.Module, optimiser: Optimizer) -> dict[str, Tensor]:
    """Return the state of a network and its optimiser as one flat dictionary of tensors."""
    tensors = {f"state.{name}": tensor for name, tensor in network.state_dict().items()}
    for position, state in optimiser.state_dict()["state"].items():
        for name, value in state.items():
            tensors[f"optimiser.{position}.{name}"] = torch.as_tensor(value)
    return tensors


def restore(network: nn.Module, optimiser: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Load the state that `collect` returned; names and shapes must be the same."""
    network.load_state_dict(
        {name.removeprefix("state."): t for name, t in tensors.items() if name.startswith("state.")}
    )
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimiser."):
            _, position, key = name.split(".", 2)
            state.setdefault(int(position), {})[key] = tensor
    # The groups hold settings, which come from the run and not from the checkpoint.
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
    # Files do not keep a memory layout, and fused optimisers require that of the parameter (channels_last, for example).
    for parameter, entries in optimiser.state.items():
        for name, value in entries.items():
            if value.shape == parameter.shape and value.stride() != parameter.stride():
                entries[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
