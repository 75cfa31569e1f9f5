"""Training: a run's description, its loop, its checkpoints."""

from contrapose.training.build import build, prepare
from contrapose.training.loop import Progress, Trainer, drain
from contrapose.training.presets import PRESETS, preset
from contrapose.training.run import Run
from contrapose.training.stops import Diverged, Stopped, signals

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
