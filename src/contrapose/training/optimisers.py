"""Optimisers of a run and their learning rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from contrapose.optim import LARS
from contrapose.training.run import Run


def optimiser(run: Run, network: nn.Module, criterion: nn.Module) -> Optimizer:
    """Return the run's optimiser of everything that is learned. LARS and AdamW do not decay biases and norms.

    What the criterion learns, a temperature, is never decayed.
    """
    parameters = [p for p in network.parameters() if p.requires_grad]
    learned = [p for p in criterion.parameters() if p.requires_grad]
    more: list[dict[str, Any]] = [{"params": learned, "weight_decay": 0.0}] if learned else []
    cuda = parameters[0].is_cuda  # a fused optimiser moves all weights in one kernel and waits for nothing
    if run.optimiser == "sgd":
        # In fp16, a first step that overflows would leave fused SGD with a momentum buffer that was never written.
        fused = (cuda and run.precision != "fp16") or None
        groups: list[dict[str, Any]] = [{"params": parameters}, *more]
        return torch.optim.SGD(groups, run.lr, momentum=0.9, weight_decay=run.weight_decay, fused=fused)
    if run.optimiser == "adam":
        groups = [{"params": parameters}, *more]
        return torch.optim.Adam(groups, run.lr, weight_decay=run.weight_decay, fused=cuda or None, capturable=cuda)
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": run.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
        *more,
    ]
    if run.optimiser == "adamw":
        return torch.optim.AdamW(groups, run.lr, fused=cuda or None, capturable=cuda)
    return LARS(groups, run.lr, form="moco" if run.optimiser == "lars-moco" else "lightly")


def gradient_norm(parameters: Sequence[nn.Parameter], clip: float) -> Tensor:
    """Return the norm of the whole gradient, which is clipped to `clip` unless that is 0."""
    if clip:
        return torch.nn.utils.clip_grad_norm_(parameters, clip)
    return torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])


def learning_rate(run: Run, step: int, steps_per_epoch: int) -> float:
    """Return the learning rate of a step: linear warm-up, then cosine to zero, drops at milestones, or constant."""
    warm, total = run.warmup * steps_per_epoch, run.epochs * steps_per_epoch
    if step < warm:
        return run.lr * (step + 1) / warm
    if run.schedule == "cosine":
        return run.lr * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1.0, total - warm)))
    if run.schedule == "step":
        epoch = step // steps_per_epoch
        return run.lr * run.gamma ** sum(epoch >= milestone for milestone in run.milestones)
    return run.lr
