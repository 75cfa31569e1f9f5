"""How far a run is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """One step, for a progress display."""

    epoch: int  # from 1
    step: int  # from 1, over all epochs
    steps: int  # steps in the whole run
    loss: float  # of this step
    images_per_second: float  # over the last steps
