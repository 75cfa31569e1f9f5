"""Optimisers of a run and their learning rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from contrapose.lab.optim import LARS
from contrapose.lab.training.run import Run
from contrapose.lab.training.shards import any_divided, clip_divided


def optimiser(run: Run, network: nn.Module, criterion: nn.Module) -> Optimizer:
    """Return the run's optimiser for all trained parameters. LARS and AdamW do not apply weight decay to biases and norms.

    The criterion's parameters, such as a learned temperature, have no weight decay.
    """
    groups, learned = _groups(run, network), [p for p in criterion.parameters() if p.requires_grad]
    groups += [{"params": learned, "weight_decay": 0.0}] if learned else []
    cuda = groups[0]["params"][0].is_cuda  # a fused optimiser updates all weights in one kernel and never synchronises
    if run.optimiser == "sgd":
        # In fp16, if the first step overflows, fused SGD would be left with an uninitialised momentum buffer.
        fused = (cuda and run.precision != "fp16") or None
        return torch.optim.SGD(groups, run.lr, momentum=0.9, weight_decay=run.weight_decay, fused=fused)
    if run.optimiser in ("adam", "adamw"):
        kind = torch.optim.Adam if run.optimiser == "adam" else torch.optim.AdamW
        betas = 0.9, run.adam_beta2
        return kind(groups, run.lr, betas, weight_decay=run.weight_decay, fused=cuda or None, capturable=cuda)
    return LARS(groups, run.lr, trust=run.lars_trust, form="moco" if run.optimiser == "lars-moco" else "lightly")


def _groups(run: Run, network: nn.Module) -> list[dict[str, Any]]:
    """Return the network's parameters in groups, each with its own weight decay and schedule."""
    predictor = set(network.get_submodule("predictor").parameters()) if run.constant_predictor_lr else set()
    learned = [p for p in network.parameters() if p.requires_grad]
    groups = _by_weight_decay(run, [p for p in learned if p not in predictor])
    if predictor:
        constant = _by_weight_decay(run, [p for p in learned if p in predictor])
        groups += [{**group, "constant_lr": True} for group in constant]
    return groups


def _by_weight_decay(run: Run, parameters: list[nn.Parameter]) -> list[dict[str, Any]]:
    """Return one group for SGD and Adam; for other optimisers, a group of weights, and biases and norms without decay."""
    if run.optimiser in ("sgd", "adam"):
        return [{"params": parameters}]
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": run.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]


def set_learning_rate(optimiser: Optimizer, rate: float | Tensor) -> None:
    """Set the learning rate of all groups that follow the schedule."""
    for group in optimiser.param_groups:
        if not group.get("constant_lr"):
            group["lr"] = rate


def gradient_norm(parameters: Sequence[nn.Parameter], clip: float, *, each: bool = False) -> Tensor:
    """Return the norm of the whole gradient before clipping, and clip the gradient to `clip` unless `clip` is 0.

    each   clip each parameter's gradient to this norm, as in DINO, instead of the gradient of all parameters
    """
    if any_divided(parameters):
        return clip_divided(parameters, clip, each=each)
    if clip and each:
        norms = [torch.nn.utils.clip_grad_norm_(p, clip) for p in parameters if p.grad is not None]
        return torch.nn.utils.get_total_norm(norms)
    if clip:
        return torch.nn.utils.clip_grad_norm_(parameters, clip)
    return torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])


def learning_rate(run: Run, step: int, steps_per_epoch: int) -> float:
    """Return a step's learning rate: linear warm-up, then cosine or linear decay, drops at milestones, or constant."""
    warm, total = run.warmup * steps_per_epoch, run.epochs * steps_per_epoch
    if step < warm:
        return run.lr * (step + 1) / warm
    if run.schedule == "cosine":
        share = 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1.0, total - warm)))
        return run.lr * (run.lr_end + (1 - run.lr_end) * share)
    if run.schedule == "linear":
        return run.lr * max(0.0, (total - step) / max(1.0, total - warm))
    if run.schedule == "step":
        epoch = step // steps_per_epoch
        return run.lr * run.lr_drop ** sum(epoch >= milestone for milestone in run.milestones)
    return run.lr
