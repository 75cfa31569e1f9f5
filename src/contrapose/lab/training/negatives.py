"""How many negatives an anchor has in a run, in words."""

from __future__ import annotations

from collections.abc import Iterator

from contrapose.lab.frameworks import FRAMEWORKS
from contrapose.lab.training.run import Run
from contrapose.lab.training.trainer import Trainer
from contrapose.losses.objective import traits_of
from contrapose.losses.parse import parse


def describe_negatives(trainer: Trainer) -> str:
    """Return the number of negatives per anchor, and what it follows from."""
    run, traits = trainer.run, traits_of(parse(trainer.run.loss).func)
    if traits.takes != "pairs" or traits.needs_target:
        return f"none: {run.loss} does not contrast samples with each other"
    negatives = FRAMEWORKS[run.framework].negatives(run, trainer.context.views.count)
    if negatives is None:  # a memory bank has one row per training sample
        negatives = len(trainer.split.train) - 1
    return f"{negatives:,} per anchor ({', '.join(_reasons(run, trainer.world_size))})"


def _reasons(run: Run, world_size: int) -> Iterator[str]:
    """Yield the settings from which the number of negatives follows."""
    yield f"--batch {run.batch}{f' on {world_size} processes' if world_size > 1 else ''}"
    if run.accumulate > 1:
        yield f"--accumulate {run.accumulate} {'with --grad-cache' if run.grad_cache else 'adds none; --grad-cache would'}"
    yield f"--framework {run.framework}"
    if run.ring and world_size > 1:
        yield "--ring"
