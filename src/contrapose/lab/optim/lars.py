"""LARS, in the two forms that the papers' code uses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class LARS(Optimizer):
    """Layer-wise adaptive learning rates: v ← μv + d, w ← w - lr·v with d = ratio · (g + wd·w) and η = `trust`.

    form "lightly": ratio = η‖w‖/(‖g‖ + wd‖w‖ + ε), for groups with weight decay; other groups use SGD with momentum,
    d = g. form "moco": ratio = η‖w‖/‖g + wd·w‖, for parameters with more than one dimension; other parameters use d = g.
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
        """Take one step; `closure` is ignored."""
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is None:
                    continue
                direction = self._direction(w, w.grad, group["weight_decay"])
                if "velocity" not in self.state[w]:
                    self.state[w]["velocity"] = torch.zeros_like(w)
                velocity, lr = self.state[w]["velocity"], group["lr"]
                if not isinstance(lr, Tensor):
                    velocity.mul_(group["momentum"]).add_(direction)
                    w.add_(velocity, alpha=-lr)
                    continue
                # The learning rate is a tensor if the step is captured in a CUDA graph. Inside a graph the gradient scaler
                # cannot skip a step, so a non-finite gradient has to be masked.
                updated = velocity * group["momentum"] + direction
                finite = getattr(self, "found_inf", torch.zeros_like(lr)) == 0
                velocity.copy_(torch.where(finite, updated, velocity))
                w.sub_(torch.where(finite, lr * updated, 0.0))

    def _direction(self, w: Tensor, g: Tensor, decay: float) -> Tensor:
        """Return d, the direction of the step before momentum."""
        is_adapted = decay != 0 if self.form == "lightly" else w.ndim > 1
        if not is_adapted:
            return g
        direction = g + decay * w
        size, norm = w.norm(), g.norm() + decay * w.norm() + 1e-8 if self.form == "lightly" else direction.norm()
        # `where` instead of `if`: an `if` would synchronise with the device for every parameter.
        ratio = torch.where((size > 0) & (norm > 0), self.trust * size / norm.clamp(min=1e-30), 1.0)
        return ratio * direction
