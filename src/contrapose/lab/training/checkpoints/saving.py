"""When a run saves a checkpoint, what the checkpoint contains, and how training resumes from it."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from contrapose.lab.training.checkpoints import checkpoint
from contrapose.lab.training.checkpoints.checkpoint import Checkpoint
from contrapose.lab.training.checkpoints.state import collect, restore
from contrapose.lab.training.context import StepContext
from contrapose.lab.training.shards import decision_of_first

PartialEpoch = tuple[float, float]  # sum of the losses, and seconds, in the completed part of an interrupted epoch
_SCALER = ("scale", "_growth_tracker")  # the state of fp16's gradient scaler


class SavedTraining:
    """Checkpoints of a run's networks, loss and optimiser in its directory."""

    def __init__(self, folder: Path, context: StepContext) -> None:
        self.folder, self.context = folder / "checkpoints", context
        # One module for everything in a checkpoint except the optimiser state: its state_dict keys become the checkpoint's keys.
        self.state = nn.ModuleDict({"network": context.network, "criterion": context.criterion})
        self.step, self._time, self._seconds = 0, -math.inf, 0.0  # step, time and writing time of the last checkpoint

    def is_due(self, *, evaluation_seconds: float) -> bool:
        """Return whether to save a checkpoint now: always before an evaluation that takes longer than saving.

        Otherwise, checkpoints are spaced so that saving takes at most a hundredth of the time.
        """
        due = evaluation_seconds > self._seconds or time.perf_counter() - self._time > 100 * self._seconds
        # Processes that have a part of the network each must save it together.
        return decision_of_first(due, self.context.device) if self.context.is_sharded else due

    def save(self, step: int, *, partial_epoch: PartialEpoch, record: Mapping[str, Any] | None) -> None:
        """Write a checkpoint of the state after a step; `record` is the last epoch's record."""
        self.step, start = step, time.perf_counter()
        if self.context.rank and not self.context.is_sharded:
            return
        tensors = collect(self.state, self.context.optimiser) | self._other_tensors(step, partial_epoch)
        if self.context.rank:  # only rank 0 writes, because parameters and buffers are equal in all processes
            return
        record = None if step % self.context.steps_per_epoch else record
        checkpoint.save(self.folder, Checkpoint(step, tensors, record))
        self._time = time.perf_counter()
        self._seconds = self._time - start

    def _other_tensors(self, step: int, partial_epoch: PartialEpoch) -> dict[str, Tensor]:
        """Return the tensors for the gradient scaler and for the progress within an epoch."""
        scaler = self.context.scaler.state_dict()  # empty unless the scaler is enabled
        tensors = {f"scaler.{name}": torch.tensor(scaler[name]) for name in _SCALER if scaler}
        if step % self.context.steps_per_epoch:
            tensors["part"] = torch.tensor(partial_epoch, dtype=torch.float64)
        return tensors

    def newest(self) -> Checkpoint | None:
        """Return the newest checkpoint that passes verification; None if there is none."""
        return checkpoint.latest(self.folder, self.context.log)

    def restore(self, saved: Checkpoint) -> PartialEpoch:
        """Load a checkpoint's state and return the progress within its epoch; raise ValueError if it does not fit the run."""
        context, tensors = self.context, saved.tensors
        total_steps = context.run.epochs * context.steps_per_epoch
        if saved.step > total_steps:
            raise ValueError(f"the run has {total_steps} steps")
        restore(self.state, context.optimiser, tensors, self._other_tensors(saved.step, (0.0, 0.0)))
        if "scaler.scale" in tensors:
            values = {name: tensors[f"scaler.{name}"].item() for name in _SCALER}
            context.scaler.load_state_dict(context.scaler.state_dict() | values)
        self.step = saved.step
        if "part" not in tensors:
            return 0.0, 0.0
        loss, seconds = tensors["part"].tolist()
        return loss, seconds
