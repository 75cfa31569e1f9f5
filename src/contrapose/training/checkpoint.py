"""Save and load checkpoints: a new directory each, verified when read, and never a pickle.

    step-00000120/
        tensors.safetensors     weights, running statistics, queues, banks, optimiser state
        checkpoint.json         the step, the sha256 of the tensors and, at the end of an epoch, its record before evaluation

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

from contrapose.training.records import writing
from contrapose.training.weights import difference

CHECKPOINTS_KEPT = 2  # the newest, and one to fall back on


@dataclass(frozen=True)
class Checkpoint:
    """A step, and the state after it as named tensors."""

    step: int
    tensors: Mapping[str, Tensor]
    record: Mapping[str, Any] | None = None  # of the epoch that ends here, as far as it was known before the evaluation


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint, then delete all but the newest two; return its directory."""
    target = folder / f"step-{checkpoint.step:08d}"
    if target.exists() and _read_step(target) is not None:
        return target
    write(target, checkpoint)
    for old in _newest_first(folder)[CHECKPOINTS_KEPT:]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def write(target: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint as the directory `target`, in place of what is there."""
    folder = target.parent
    with writing(target):
        folder.mkdir(parents=True, exist_ok=True)
        remove_unfinished(folder)
        temporary = folder / f".{target.name}.{os.getpid()}"
        try:
            _write_files(temporary, checkpoint)
            shutil.rmtree(target, ignore_errors=True)  # damaged, or of an epoch that is trained a second time
            temporary.rename(target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)  # on a full disk its space is needed
            raise
        _flush(folder)


def _write_files(folder: Path, checkpoint: Checkpoint) -> None:
    """Write the two files of a checkpoint to a new directory and flush them to the disk."""
    from safetensors.torch import save as to_bytes

    folder.mkdir()
    payload = to_bytes({name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()})
    description = {"step": checkpoint.step, "sha256": hashlib.sha256(payload).hexdigest()}
    if checkpoint.record is not None:
        description["record"] = dict(checkpoint.record)
    _write(folder / "tensors.safetensors", payload)
    _write(folder / "checkpoint.json", json.dumps(description).encode())
    _flush(folder)  # before it is renamed: after a power failure the new name must not point to missing data


def remove_unfinished(folder: Path) -> None:
    """Remove what earlier processes left when they were killed while writing; only one process at a time writes here."""
    for unfinished in (*folder.glob(".step-*"), *folder.glob(".epoch-*")):
        shutil.rmtree(unfinished, ignore_errors=True)


def latest(folder: Path, say: Any = print) -> Checkpoint | None:
    """Return the newest checkpoint that verifies, or None if there is none."""
    for path in _newest_first(folder):
        checkpoint = _read_step(path)
        if checkpoint is not None:
            return checkpoint
        say(f"{path} is damaged; trying the checkpoint before it")
    return None


def _newest_first(folder: Path) -> list[Path]:
    """Return the directories of checkpoints; any other file or directory is left alone."""
    named = [path for path in folder.glob("step-*") if path.name[5:].isdecimal() and path.is_dir()]
    return sorted(named, key=lambda path: int(path.name[5:]), reverse=True)


def _read_step(path: Path) -> Checkpoint | None:
    """Return the checkpoint of a directory named by its step; None if it is damaged, or of another step."""
    checkpoint = read(path)
    return checkpoint if checkpoint is not None and checkpoint.step == int(path.name[5:]) else None


def read(path: Path) -> Checkpoint | None:
    """Return a checkpoint, or None if any part of it is missing or damaged."""
    from safetensors.torch import load as from_bytes

    try:
        description = json.loads((path / "checkpoint.json").read_bytes())
        payload = (path / "tensors.safetensors").read_bytes()
        if hashlib.sha256(payload).hexdigest() != description["sha256"]:
            return None
        step, record = int(description["step"]), description.get("record")
        if not (record is None or isinstance(record, dict)):
            return None
        return Checkpoint(step, from_bytes(payload), record)
    except MemoryError:
        raise
    except Exception:  # a hostile or broken file can fail in any way
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
    """Load the state that `collect` returned; raise ValueError if names, shapes or types are not the same."""
    own = {name.removeprefix("state."): t for name, t in tensors.items() if name.startswith("state.")}
    obstacle = difference(network.state_dict(), own)
    if obstacle:
        raise ValueError(obstacle)
    groups = optimiser.state_dict()["param_groups"]
    parameters = {position for group in groups for position in group["params"]}
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimiser."):
            _, position, key = name.split(".", 2)
            if not position.isdecimal() or int(position) not in parameters:
                raise ValueError(f"unexpected {name}")
            state.setdefault(int(position), {})[key] = tensor
    network.load_state_dict(own)
    # The groups hold settings, which come from the run and not from the checkpoint.
    optimiser.load_state_dict({"state": state, "param_groups": groups})
    # Files do not keep a memory layout, and fused optimisers require that of the parameter (channels_last, for example).
    for parameter, entries in optimiser.state.items():
        for name, value in entries.items():
            if value.shape == parameter.shape and value.stride() != parameter.stride():
                entries[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
