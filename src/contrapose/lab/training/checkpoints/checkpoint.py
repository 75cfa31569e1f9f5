"""Save and load checkpoints. Each checkpoint is a new directory, verified when read, and never contains a pickle.

    step-00000120/
        tensors.safetensors     weights, running statistics, queues, banks, optimiser state
        checkpoint.json         the format, the step, the epoch's record before evaluation (only at the end of an epoch), and the
                                sha256 of these fields and the tensors

A checkpoint is written under a temporary name, flushed to the disk and renamed, so that every directory with a final name is
complete. The newest checkpoint that passes verification is loaded; a damaged checkpoint is skipped with a message.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contrapose.lab.training.records.files import read_bytes, read_json, writing

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = (
    2  # of checkpoint.json; format 1, from version 0.1.0, has no format number, and its hash covers only the tensors
)
CHECKPOINTS_KEPT = 2  # the newest checkpoint, and another to fall back on


@dataclass(frozen=True)
class Checkpoint:
    """A step number, and the state after that step as named tensors."""

    step: int
    tensors: Mapping[str, Tensor]
    record: Mapping[str, Any] | None = None  # record of the epoch that ends here, without the evaluation that follows


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint, then delete all checkpoints except the newest two; return the new checkpoint's directory."""
    target = folder / f"step-{checkpoint.step:08d}"
    if target.exists() and read(target) is not None:
        return target
    write(target, checkpoint)
    remove_older(folder, checkpoint.step)
    return target


def remove_older(folder: Path, step: int) -> None:
    """Remove the checkpoints before this step, except the newest of them; a process may be killed before it has done so."""
    older = [path for path in newest_first(folder) if int(path.name[5:]) < step]
    for path in older[CHECKPOINTS_KEPT - 1 :]:
        shutil.rmtree(path, ignore_errors=True)


def write(target: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint to the directory `target`, replacing an existing one."""
    folder = target.parent
    with writing(target):
        folder.mkdir(parents=True, exist_ok=True)
        remove_unfinished(folder)
        temporary = folder / f".{target.name}.{os.getpid()}"
        try:
            _write_files(temporary, checkpoint)
            shutil.rmtree(target, ignore_errors=True)  # an old one is damaged, or from an epoch that was trained again
            temporary.rename(target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)  # frees space, because the disk may be full
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
    _flush(folder)  # before the rename: after a power failure, the final name must not point to missing data


def remove_unfinished(folder: Path) -> None:
    """Remove partial files left by processes that were killed while writing; only one process writes here at a time."""
    for unfinished in (*folder.glob(".step-*"), *folder.glob(".epoch-*")):
        shutil.rmtree(unfinished, ignore_errors=True)


def latest(folder: Path, log: Any = print) -> Checkpoint | None:
    """Return the newest checkpoint that passes verification, or None if there is none.

    Raises ValueError if all checkpoints were written by a newer version: starting over would discard the training.
    """
    newer = ""
    for path in newest_first(folder):
        checkpoint = read(path)
        if checkpoint is not None:
            return checkpoint
        newer = newer or _newer_format(path)
        log(f"{path} {_newer_format(path) or 'is damaged'}; trying the checkpoint before it")
    if newer:
        raise ValueError(f"out: {newest_first(folder)[0]} {newer}; upgrade contrapose, or use another --out")
    return None


def newest_first(folder: Path) -> list[Path]:
    """Return the checkpoint directories, newest first; other files and directories are ignored."""
    named = [path for path in folder.glob("step-*") if path.name[5:].isdecimal() and path.is_dir()]
    return sorted(named, key=lambda path: int(path.name[5:]), reverse=True)


def read(path: Path) -> Checkpoint | None:
    """Return the checkpoint in a directory; None if it is incomplete or damaged, or if the directory name has another step."""
    from safetensors.torch import load as from_bytes

    try:
        description = read_json(path / "checkpoint.json")
        payload = read_bytes(path / "tensors.safetensors")
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
    """Return the sha256 of a checkpoint's description (without the hash itself) and its tensor file."""
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode() + b"\n")
    digest.update(payload)
    return digest.hexdigest()


def _first_digest(payload: bytes) -> str:
    """Return the hash used in the first format, which covers only the tensors."""
    return hashlib.sha256(payload).hexdigest()


def _agrees(name: str, checkpoint: Checkpoint) -> bool:
    """Return whether the directory name (step-00000120, or epoch-20 if kept) and the record match the checkpoint's step."""
    kind, _, number = name.partition("-")
    step, record = checkpoint.step, checkpoint.record
    if type(step) is not int or not (record is None or isinstance(record, dict)):
        return False
    record = record or {}
    return record.get("step", step) == step and int(number) == (record.get("epoch") if kind == "epoch" else step)


def _newer_format(path: Path) -> str:
    """Return a message if a checkpoint's format is from a newer version; otherwise an empty string."""
    try:
        number = read_json(path / "checkpoint.json")["format"]
        is_newer = type(number) is int and number > FORMAT
    except Exception:  # damaged
        return ""
    return f"has format {number}, but this version reads only formats up to {FORMAT}" if is_newer else ""


def _write(path: Path, payload: bytes) -> None:
    with path.open("wb") as file:
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())


def _flush(folder: Path) -> None:
    """Flush a directory's entries to the disk, because fsync on a file does not save the file's name."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
