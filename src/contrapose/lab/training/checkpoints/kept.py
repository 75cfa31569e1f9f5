"""Weights that are kept after chosen epochs (`train --keep`), in addition to the newest checkpoints.

    kept/epoch-20/      weights of encoder and projector only, written and verified like a checkpoint

Kept weights are written before the checkpoint of the same epoch, so that a run that resumes after the epoch has them. With
`--keep-best`, weights are written after the evaluation.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from contrapose.lab.training.checkpoints import checkpoint
from contrapose.lab.training.checkpoints.checkpoint import Checkpoint
from contrapose.lab.training.records.files import read_records


def keep(folder: Path, network: nn.Module, *, epoch: int, step: int) -> None:
    """Write the encoder's and projector's weights after an epoch to the run's directory."""
    parts = ("encoder.", "projector.")
    # The names are the same as in a checkpoint, so that kept weights are loaded in the same way.
    tensors = {f"state.network.{name}": t for name, t in network.state_dict().items() if name.startswith(parts)}
    checkpoint.write(_path(folder, epoch), Checkpoint(step, tensors, {"epoch": epoch}))


def keep_best(
    folder: Path, network: nn.Module, record: Mapping[str, Any], *, name: str, keep_always: Iterable[int]
) -> None:
    """Keep the weights after an epoch if a score in the epoch's record is the highest so far; they replace the previous best.

    record        the epoch's record, before it is appended to the run's records
    name          name of the score in the record
    keep_always   epochs whose weights are kept, whatever their score
    """
    best = best_epoch(folder, name)
    if name not in record or (best is not None and record[name] <= best[1]):
        return
    keep(folder, network, epoch=record["epoch"], step=record["step"])
    if best is not None and best[0] not in keep_always:
        shutil.rmtree(_path(folder, best[0]), ignore_errors=True)


def best_epoch(folder: Path, name: str) -> tuple[int, float] | None:
    """Return the kept epoch with the highest value of `name` in the records, and that value; None if there is none.

    Only epochs whose weights still exist are considered, because a killed run may have lost the weights of a better epoch.
    """
    kept = set(kept_epochs(folder))
    numbers = [(-r[name], r["epoch"]) for r in read_records(folder) if name in r and r["epoch"] in kept]
    return (min(numbers)[1], -min(numbers)[0]) if numbers else None


def read_kept(folder: Path, epoch: int) -> Checkpoint:
    """Return the weights kept after an epoch; raise ValueError if they are missing or damaged."""
    path = _path(folder, epoch)
    if not path.exists():
        epochs = kept_epochs(folder)
        has = f"has kept epochs {', '.join(map(str, epochs))}" if epochs else "has kept none (see `train --keep`)"
        raise ValueError(f"epoch: expected an epoch whose weights were kept, got {epoch!r}; {folder} {has}")
    kept = checkpoint.read(path)
    if kept is None:
        raise ValueError(f"epoch: {path} is damaged; train again with another --out to get the weights of this epoch")
    return kept


def kept_epochs(folder: Path) -> list[int]:
    """Return the epochs whose weights are kept in a run's directory, in order."""
    names = (path.name.removeprefix("epoch-") for path in (folder / "kept").glob("epoch-*") if path.is_dir())
    return sorted(int(name) for name in names if name.isdecimal())


def lost_weights(folder: Path, epochs: Iterable[int]) -> Iterator[str]:
    """Yield a message for each of these past epochs whose kept weights are missing or damaged."""
    for epoch in epochs:
        if checkpoint.read(_path(folder, epoch)) is None:
            yield (
                f"{_path(folder, epoch)} is missing or damaged, and epoch {epoch} has passed, so the run continues without it; "
                "to get these weights, train again with another --out"
            )


def _path(folder: Path, epoch: int) -> Path:
    return folder / "kept" / f"epoch-{epoch}"
