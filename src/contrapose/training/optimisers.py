"""Optimisers and their schedules."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from contrapose.training.run import Run


class LARS(Optimizer):
    """Layer-wise adaptive rates, v ← μv + d and w ← w - lr·v with d = η‖w‖/‖…‖ · (g + wd·w).

    form "lightly": ratio η‖w‖/(‖g‖ + wd‖w‖ + ε), for groups with weight decay; the others get plain SGD.
    form "moco": ratio η‖w‖/‖g + wd·w‖, for parameters with more than one dimension; the others get plain SGD.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 1e-3,
        form: str = "lightly",
    ) -> None:
        if form not in ("lightly", "moco"):
            raise ValueError(f"form: expected 'lightly' or 'moco', got {form!r}")
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.trust, self.form = trust, form

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step; `closure` is not used."""
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is None:
                    continue
                direction = self._direction(w, w.grad, group["weight_decay"])
                velocity = self.state[w].setdefault("velocity", torch.zeros_like(w))
                velocity.mul_(group["momentum"]).add_(direction)
                w.add_(velocity, alpha=-group["lr"])

    def _direction(self, w: Tensor, g: Tensor, decay: float) -> Tensor:
        adapts = decay != 0 if self.form == "lightly" else w.ndim > 1
        if not adapts:
            return g
        direction = g + decay * w
        size, norm = w.norm(), g.norm() + decay * w.norm() + 1e-8 if self.form == "lightly" else direction.norm()
        ratio = torch.where((size > 0) & (norm > 0), self.trust * size / norm.clamp(min=1e-30), 1.0)
        return ratio * direction


def optimiser(run: Run, network: nn.Module) -> Optimizer:
    """The run's optimiser; biases and norms are not decayed by LARS and AdamW."""
    parameters = [p for p in network.parameters() if p.requires_grad]
    if run.optimiser == "sgd":
        return torch.optim.SGD(parameters, run.lr, momentum=0.9, weight_decay=run.weight_decay)
    if run.optimiser == "adam":
        return torch.optim.Adam(parameters, run.lr, weight_decay=run.weight_decay)
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": run.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if run.optimiser == "adamw":
        return torch.optim.AdamW(groups, run.lr)
    return LARS(groups, run.lr, form="moco" if run.optimiser == "lars-moco" else "lightly")


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
