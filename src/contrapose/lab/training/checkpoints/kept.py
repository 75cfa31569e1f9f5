"""Weights that are kept after chosen epochs (`train --keep`), in addition to the newest checkpoints.

    kept/epoch-20/      weights of encoder and projector only, written and verified like a checkpoint

Kept weights are written before the checkpoint of the same epoch, so that a run that resumes after the epoch has them. With
`--keep-best`, weights are written after the evaluation.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from contrapose.lab.training.checkpoints import checkpoint
from contrapose.lab.training.checkpoints.checkpoint import Checkpoint
from contrapose.lab.training.context import StepContext
from contrapose.lab.training.records.files import read_records
from contrapose.lab.training.shards import decision_of_first, whole


@dataclass(frozen=True)
class KeptWeights:
    """Keeps the weights of encoder and projector after the epochs that a run's settings name."""

    folder: Path  # of the run
    context: StepContext

    def after_epoch(self, epoch: int, step: int) -> None:
        """Keep the weights if the settings name this epoch; of a divided network, all processes must call this."""
        if epoch in self.context.run.keep and self._takes_part:
            self._write(self._weights(), epoch=epoch, step=step)

    def after_evaluation(self, record: Mapping[str, Any], *, complete: bool) -> None:
        """Keep the weights if they are the best so far; after the last epoch, report if the records lack the score.

        record     the epoch's record, before it is appended to the run's records
        complete   whether this was the last epoch
        """
        name = self.context.run.keep_best
        if not name or not self._takes_part:
            return
        if name not in record and complete and not self.context.rank:
            has = ", ".join(record)
            self.context.log(f"keep_best: the records have no {name!r}, so no weights were kept; they have {has}")
        best = best_epoch(self.folder, name)
        is_best = name in record and (best is None or record[name] > best[1])
        if self.context.is_sharded:  # whose records only the first process has
            is_best = decision_of_first(is_best, self.context.device)
        if not is_best:
            return
        self._write(self._weights(), epoch=record["epoch"], step=record["step"])
        if best is not None and best[0] not in self.context.run.keep and not self.context.rank:
            shutil.rmtree(_path(self.folder, best[0]), ignore_errors=True)

    @property
    def _takes_part(self) -> bool:
        return self.context.rank == 0 or self.context.is_sharded

    def _weights(self) -> dict[str, Tensor]:
        parts, own = ("encoder.", "projector."), self.context.network.state_dict()
        # The names are the same as in a checkpoint, so that kept weights are loaded in the same way.
        return whole({f"state.network.{name}": t for name, t in own.items() if name.startswith(parts)})

    def _write(self, weights: Mapping[str, Tensor], *, epoch: int, step: int) -> None:
        if self.context.rank == 0:
            checkpoint.write(_path(self.folder, epoch), Checkpoint(step, weights, {"epoch": epoch}))


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
