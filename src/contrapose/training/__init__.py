"""Training: a run's description, its trainer, its checkpoints, and the model that is left."""

from contrapose.training.build import build, prepare, prepare_other
from contrapose.training.defaults import resolve
from contrapose.training.embedder import Embedder
from contrapose.training.model import Model, load
from contrapose.training.presets import PRESETS, preset
from contrapose.training.run import Run
from contrapose.training.stops import Diverged, Stopped, signals
from contrapose.training.trainer import Progress, Trainer, drain

__all__ = [
    "PRESETS",
    "Diverged",
    "Embedder",
    "Model",
    "Progress",
    "Run",
    "Stopped",
    "Trainer",
    "build",
    "drain",
    "load",
    "prepare",
    "prepare_other",
    "preset",
    "resolve",
    "signals",
]
