"""Save and load checkpoints: a new directory each, verified when read, and never a pickle.

    step-00000120/
        tensors.safetensors     weights, running statistics, queues, banks, optimiser state
        checkpoint.json         the format, the step, at the end of an epoch its record before evaluation, and the sha256 of
                                all that and the tensors

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

from torch import Tensor

from contrapose.lab.training.records.files import writing

FORMAT = 2  # of checkpoint.json; the first one, of version 0.1.0, has no number, and a hash of the tensors alone
CHECKPOINTS_KEPT = 2  # the newest, and one to fall back on


@dataclass(frozen=True)
class Checkpoint:
    """A step, and the state after it as named tensors."""

    step: int
    tensors: Mapping[str, Tensor]
    record: Mapping[str, Any] | None = None  # record of the epoch that ends here, without the evaluation that follows


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint, then delete all but the newest two; return its directory."""
    target = folder / f"step-{checkpoint.step:08d}"
    if target.exists() and read(target) is not None:
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
    description: dict[str, Any] = {"format": FORMAT, "step": checkpoint.step}
    if checkpoint.record is not None:
        description["record"] = dict(checkpoint.record)
    description["sha256"] = _digest(description, payload)
    _write(folder / "tensors.safetensors", payload)
    _write(folder / "checkpoint.json", json.dumps(description).encode())
    _flush(folder)  # before the rename: after a power failure the new name must not point to missing data


def remove_unfinished(folder: Path) -> None:
    """Remove partial files of processes that were killed while writing; only one process at a time writes here."""
    for unfinished in (*folder.glob(".step-*"), *folder.glob(".epoch-*")):
        shutil.rmtree(unfinished, ignore_errors=True)


def latest(folder: Path, log: Any = print) -> Checkpoint | None:
    """Return the newest checkpoint that verifies, or None if there is none.

    Raises ValueError if all checkpoints are of a newer version: starting over would discard the training.
    """
    newer = ""
    for path in _newest_first(folder):
        checkpoint = read(path)
        if checkpoint is not None:
            return checkpoint
        newer = newer or _newer_format(path)
        log(f"{path} {_newer_format(path) or 'is damaged'}; trying the checkpoint before it")
    if newer:
        raise ValueError(f"out: {_newest_first(folder)[0]} {newer}; upgrade contrapose, or use another --out")
    return None


def _newest_first(folder: Path) -> list[Path]:
    """Return the directories of checkpoints; any other file or directory is left alone."""
    named = [path for path in folder.glob("step-*") if path.name[5:].isdecimal() and path.is_dir()]
    return sorted(named, key=lambda path: int(path.name[5:]), reverse=True)


def read(path: Path) -> Checkpoint | None:
    """Return the checkpoint of a directory; None if a part of it is missing or damaged, or if its name is of another step."""
    from safetensors.torch import load as from_bytes

    try:
        description = json.loads((path / "checkpoint.json").read_bytes())
        payload = (path / "tensors.safetensors").read_bytes()
        digest = description.pop("sha256")
        if digest != (_digest(description, payload) if "format" in description else _first_digest(payload)):
            return None
        if description.pop("format", FORMAT) != FORMAT:
            return None
        checkpoint = Checkpoint(tensors=from_bytes(payload), **description)
        return checkpoint if _agrees(path.name, checkpoint) else None
    except MemoryError:
        raise
    except Exception:  # a hostile or broken file can raise any exception
        return None


def _digest(description: Mapping[str, Any], payload: bytes) -> str:
    """Return the sha256 of a description, without its own hash, and of the tensors' file."""
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode() + b"\n")
    digest.update(payload)
    return digest.hexdigest()


def _first_digest(payload: bytes) -> str:
    """Return the hash of the first format, which covers the tensors alone."""
    return hashlib.sha256(payload).hexdigest()


def _agrees(name: str, checkpoint: Checkpoint) -> bool:
    """Return whether a directory's name and the record are of the checkpoint's step: step-00000120, or epoch-20 if kept."""
    kind, _, number = name.partition("-")
    step, record = checkpoint.step, checkpoint.record
    if type(step) is not int or not (record is None or isinstance(record, dict)):
        return False
    record = record or {}
    return record.get("step", step) == step and int(number) == (record.get("epoch") if kind == "epoch" else step)


def _newer_format(path: Path) -> str:
    """Return a message if a checkpoint has the format of a newer version; empty if not."""
    try:
        number = json.loads((path / "checkpoint.json").read_bytes())["format"]
        is_newer = type(number) is int and number > FORMAT
    except Exception:  # damaged
        return ""
    return f"has the format {number}, and this version reads formats up to {FORMAT}" if is_newer else ""


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
