"""LARS, in the two forms the papers' code uses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


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
                if "velocity" not in self.state[w]:
                    self.state[w]["velocity"] = torch.zeros_like(w)
                velocity, rate = self.state[w]["velocity"], group["lr"]
                if not isinstance(rate, Tensor):
                    velocity.mul_(group["momentum"]).add_(direction)
                    w.add_(velocity, alpha=-rate)
                    continue
                # A rate in a tensor, in a recorded graph: there a gradient that is not finite must move nothing.
                moved = velocity * group["momentum"] + direction
                fine = getattr(self, "found_inf", torch.zeros_like(rate)) == 0
                velocity.copy_(torch.where(fine, moved, velocity))
                w.sub_(torch.where(fine, rate * moved, 0.0))

    def _direction(self, w: Tensor, g: Tensor, decay: float) -> Tensor:
        adapts = decay != 0 if self.form == "lightly" else w.ndim > 1
        if not adapts:
            return g
        direction = g + decay * w
        size, norm = w.norm(), g.norm() + decay * w.norm() + 1e-8 if self.form == "lightly" else direction.norm()
        ratio = torch.where((size > 0) & (norm > 0), self.trust * size / norm.clamp(min=1e-30), 1.0)
        return ratio * direction
