"""Turn any kind of temperature into the exponent s / τ."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from contrapose.reduce import Logit, Scale, TemperatureLogit
from contrapose.temperature.deferred_check import DeferredCheck
from contrapose.temperature.learned import LearnedTemperature, TemperatureNet
from contrapose.temperature.profile import Profile
from contrapose.temperature.schedule import Schedule
from contrapose.validate import check_number, check_values

_check_learned_later = DeferredCheck()
SMALLEST = 1e-6  # at a lower temperature, s/τ in float32 has no digits left after the decimal point

Temperature: TypeAlias = float | Tensor | Callable[[Tensor], Tensor]


def temperature_logit(temperature: Temperature, anchors: int, name: str = "temperature") -> Logit:
    """Return φ(s) = s / τ for a number, one number per anchor, a learned temperature, or a function of similarity."""
    if isinstance(temperature, LearnedTemperature):  # positive by construction: no value is read from the device
        return Scale(temperature.inverse())
    if isinstance(temperature, Tensor):
        return Scale(_check_tensor(temperature, anchors, name).reciprocal())
    if isinstance(temperature, Schedule):
        raise ValueError(f"{name}: a schedule needs an epoch: pass {name}=schedule.at(epoch)")
    if isinstance(temperature, TemperatureNet):
        raise ValueError(
            f"{name}: a network needs the anchors' embeddings: write Loss(…, {name}=learned(net, …)), or pass its values"
        )
    if isinstance(
        temperature, Profile
    ):  # its range is checked when it is created, without reading values on the device
        return TemperatureLogit(temperature)
    if callable(temperature):
        return TemperatureLogit(_CheckedFunction(temperature, name))
    if not (
        type(temperature) is float and SMALLEST <= temperature < math.inf
    ):  # checked first, since a loss is called often
        check_number(name, temperature, above=0.0)
        check_number(name, temperature, least=SMALLEST)
    return Scale(1.0 / float(temperature))


def _check_tensor(temperature: Tensor, anchors: int, name: str) -> Tensor:
    """Return the temperatures in float32 or better, or raise ValueError."""
    if temperature.shape not in ((), (anchors,)):
        raise ValueError(
            f"{name}: expected a number, one per anchor ({anchors},) or a function of similarity, "
            f"got shape {tuple(temperature.shape)}"
        )
    if not temperature.is_floating_point():
        raise ValueError(f"{name}: expected floating point temperatures, got {temperature.dtype}")
    values: Any = temperature.detach()
    message = f"{name}: expected temperatures of at least {SMALLEST:g}, got"
    if temperature.is_cuda and temperature.requires_grad:  # learned: its value changes in every step
        _check_learned_later(values.min() if values.ndim else values, partial(_check_learned, message=message))
    else:
        check_values(values >= SMALLEST, lambda: f"{message} {values.min().item():g}")
    return temperature.float() if temperature.dtype in (torch.float16, torch.bfloat16) else temperature


def _check_learned(value: float, message: str) -> None:
    if not value >= SMALLEST:  # written this way so that NaN is rejected too
        raise ValueError(f"{message} {value:g} in an earlier step")


@dataclass(frozen=True)
class _CheckedFunction:
    """A user's own function of similarity, with its output checked: one positive temperature per similarity."""

    function: Callable[[Tensor], Tensor]
    name: str

    def __call__(self, s: Tensor) -> Tensor:
        tau = self.function(s)
        if not isinstance(tau, Tensor) or tau.shape != s.shape:
            received = f"shape {tuple(tau.shape)}" if isinstance(tau, Tensor) else repr(tau)
            raise ValueError(
                f"{self.name}: expected a function that returns one temperature per similarity, "
                f"shape {tuple(s.shape)}, but it returned {received}"
            )
        lowest = tau.detach().min()
        check_values(
            lowest >= SMALLEST,
            lambda: (
                f"{self.name}: expected temperatures of at least {SMALLEST:g}, "
                f"but the function returned {float(lowest) + 0.0:g}"  # + 0.0 turns -0 into 0
            ),
        )
        return tau
