"""Trainers in float64: in float32 the sums of two processes differ from those of one, and untrained batch norms amplify that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from contrapose.lab.networks.encoder import Encoder
from contrapose.lab.training import Run, Trainer


def float64_trainer(run: Run, folder: Path, **options: Any) -> Trainer:
    """Return a trainer whose networks, and so its optimiser and state, are in float64."""
    torch.set_default_dtype(torch.float64)  # of the networks, which are built now
    try:
        trainer = Trainer(run, folder, log=lambda text: None, **options)
    finally:
        torch.set_default_dtype(torch.float32)
    for module in trainer.context.network.modules():
        if isinstance(module, Encoder):  # images are float32, whatever the network is
            module.register_forward_pre_hook(_as_double)
    return trainer


def _as_double(module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(argument.double() for argument in arguments)
