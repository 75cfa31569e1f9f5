"""Any kind of temperature as the exponent s / τ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from contrapose.reduce import Divided, Logit, Scale
from contrapose.temperature.schedule import Schedule
from contrapose.validate import check_number, check_values

Temperature: TypeAlias = float | Tensor | Callable[[Tensor], Tensor]


def temperature_logit(temperature: Temperature, anchors: int, name: str = "temperature") -> Logit:
    """φ(s) = s / τ for a number, one number per anchor, or a function of similarity."""
    if isinstance(temperature, Tensor):
        return Scale(1.0 / _checked(temperature, anchors, name))
    if isinstance(temperature, Schedule):
        raise ValueError(f"{name}: a schedule needs an epoch: pass {name}=schedule.at(epoch)")
    if callable(temperature):
        return Divided(temperature)
    check_number(name, temperature, above=0.0)
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
    check_values(wanted > 0, lambda: f"{name}: expected temperatures above 0, got {wanted.min().item():g}")
    return temperature.float() if temperature.dtype in (torch.float16, torch.bfloat16) else temperature
