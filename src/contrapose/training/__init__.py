"""Training: a run's description, its loop, its checkpoints."""

from contrapose.training.loop import Diverged, Progress, Stopped, Trainer, build, drain, prepare, signals
from contrapose.training.presets import PRESETS, preset
from contrapose.training.run import Run

__all__ = [
    "PRESETS",
    "Diverged",
    "Progress",
    "Run",
    "Stopped",
    "Trainer",
    "build",
    "drain",
    "prepare",
    "preset",
    "signals",
]
