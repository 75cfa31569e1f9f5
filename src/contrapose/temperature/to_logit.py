"""Any kind of temperature as the exponent s / τ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from contrapose.reduce import Divided, Logit, Scale
from contrapose.temperature.profile import Profile
from contrapose.temperature.schedule import Schedule
from contrapose.validate import check_number, check_values

SHARPEST = 1e-6  # below, s/τ has no digits left in float32

Temperature: TypeAlias = float | Tensor | Callable[[Tensor], Tensor]


def temperature_logit(temperature: Temperature, anchors: int, name: str = "temperature") -> Logit:
    """φ(s) = s / τ for a number, one number per anchor, or a function of similarity."""
    if isinstance(temperature, Tensor):
        return Scale(1.0 / _checked(temperature, anchors, name))
    if isinstance(temperature, Schedule):
        raise ValueError(f"{name}: a schedule needs an epoch: pass {name}=schedule.at(epoch)")
    if isinstance(temperature, Profile):
        return Divided(temperature)
    if callable(temperature):
        return Divided(_Checked(temperature, name))
    check_number(name, temperature, above=0.0)
    check_number(name, temperature, least=SHARPEST)
    return Scale(1.0 / temperature)


def _checked(temperature: Tensor, anchors: int, name: str) -> Tensor:
    if temperature.shape not in ((), (anchors,)):
        raise ValueError(
            f"{name}: expected a number, one per anchor ({anchors},) or a function of similarity, "
            f"got shape {tuple(temperature.shape)}"
        )
    if not temperature.is_floating_point():
        raise ValueError(f"{name}: expected floating point temperatures, got {temperature.dtype}")
    wanted: Any = temperature.detach()
    check_values(
        wanted >= SHARPEST,
        lambda: f"{name}: expected temperatures of at least {SHARPEST:g}, got {wanted.min().item():g}",
    )
    return temperature.float() if temperature.dtype in (torch.float16, torch.bfloat16) else temperature


@dataclass(frozen=True)
class _Checked:
    """A user's own function of similarity: what comes out must be a temperature for what goes in."""

    function: Callable[[Tensor], Tensor]
    name: str

    def __call__(self, s: Tensor) -> Tensor:
        tau = self.function(s)
        if not isinstance(tau, Tensor) or tau.shape != s.shape:
            came = f"shape {tuple(tau.shape)}" if isinstance(tau, Tensor) else repr(tau)
            raise ValueError(
                f"{self.name}: expected a function from similarities to as many temperatures, it gave {came}"
            )
        lowest = tau.detach().min()
        check_values(
            lowest >= SHARPEST,
            lambda: (
                f"{self.name}: expected temperatures of at least {SHARPEST:g}, the function gave {float(lowest) + 0.0:g}"
            ),
        )
        return tau
