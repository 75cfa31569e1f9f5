"""Training: a run's description, its trainer, its checkpoints, and the trained model."""

from contrapose.lab.training.build import build, prepare, prepare_other
from contrapose.lab.training.defaults import resolve
from contrapose.lab.training.embedder import Embedder
from contrapose.lab.training.model import Model, load
from contrapose.lab.training.options import make_run
from contrapose.lab.training.presets import PRESETS, preset
from contrapose.lab.training.run import Run
from contrapose.lab.training.stops import Diverged, Stopped, signals
from contrapose.lab.training.trainer import Progress, Trainer, drain

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
    "make_run",
    "prepare",
    "prepare_other",
    "preset",
    "resolve",
    "signals",
]
