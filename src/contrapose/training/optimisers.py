"""Optimisers and their schedules."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from contrapose.optim.lars import LARS
from contrapose.training.run import Run


def optimiser(run: Run, network: nn.Module) -> Optimizer:
    """The run's optimiser; biases and norms are not decayed by LARS and AdamW."""
    parameters = [p for p in network.parameters() if p.requires_grad]
    cuda = parameters[0].is_cuda  # there one kernel moves all weights, and waits for nothing
    if run.optimiser == "sgd":
        # In fp16 a first step that overflows would leave fused SGD with a momentum that nobody has written.
        fused = (cuda and run.precision != "fp16") or None
        return torch.optim.SGD(parameters, run.lr, momentum=0.9, weight_decay=run.weight_decay, fused=fused)
    if run.optimiser == "adam":
        return torch.optim.Adam(parameters, run.lr, weight_decay=run.weight_decay, fused=cuda or None, capturable=cuda)
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": run.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if run.optimiser == "adamw":
        return torch.optim.AdamW(groups, run.lr, fused=cuda or None, capturable=cuda)
    return LARS(groups, run.lr, form="moco" if run.optimiser == "lars-moco" else "lightly")


def gradient_norm(run: Run, network: nn.Module) -> Tensor:
    """The norm of the whole gradient, which is clipped where the run says so."""
    if run.clip:
        return torch.nn.utils.clip_grad_norm_(network.parameters(), run.clip)
    return torch.nn.utils.get_total_norm([p.grad for p in network.parameters() if p.grad is not None])


def learning_rate(run: Run, step: int, steps_per_epoch: int) -> float:
    """The rate of a step: linear warm-up, then cosine to zero, drops at milestones, or constant."""
    warm, total = run.warmup * steps_per_epoch, run.epochs * steps_per_epoch
    if step < warm:
        return run.lr * (step + 1) / warm
    if run.schedule == "cosine":
        return run.lr * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1.0, total - warm)))
    if run.schedule == "step":
        epoch = step // steps_per_epoch
        return run.lr * run.gamma ** sum(epoch >= milestone for milestone in run.milestones)
    return run.lr
