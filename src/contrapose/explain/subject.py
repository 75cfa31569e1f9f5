"""A loss that can be asked what it does: its settings complete, and its temperature known."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from contrapose import losses
from contrapose.losses.parse import parse
from contrapose.losses.sogclr import STATE_SETTINGS
from contrapose.pairs import AnyPairs
from contrapose.pairs.negatives import Hardest, steps
from contrapose.temperature import Profile, Schedule, adaptive

# The setting that makes an objective softer (+1: the exponent is s / value) or sharper (-1: it is factor · value · s).
_SOFTNESS = {
    losses.tau: ("base", 1, 1.0),
    losses.balanced: ("alpha", -1, 1.0),
    losses.generalized_nt_xent: ("alpha", -1, 1.0),
    losses.cacr: ("t_neg", -1, 2.0),
    losses.align_uniform: ("t", -1, 2.0),
}


@dataclass(frozen=True)
class Subject:
    """A named objective with its settings."""

    name: str
    objective: Callable[..., Tensor]
    settings: dict[str, Any]

    @classmethod
    def of(cls, text: str, data: str | None = None, *, epoch: int = 0) -> Subject:
        """The loss that `text` describes; a schedule takes its value at `epoch`.

        What a run would bring along is filled in: iSogCLR's temperatures as they begin, TaU's uncertainty of a new head.
        """
        made = parse(text, data)
        settings = {
            name: value.at(epoch) if isinstance(value, Schedule) else value for name, value in made.keywords.items()
        }
        if made.func is losses.isogclr:
            rest = {name: value for name, value in settings.items() if name not in STATE_SETTINGS}
            return cls(text, losses.sogclr, {"temperature": settings.get("temperature", 0.1), **rest})
        return cls(text, made.func, settings)

    def __call__(self, pairs: AnyPairs) -> Tensor:
        """The loss."""
        more = {"score": torch.zeros(pairs.shape[0], dtype=torch.float64)} if self.objective is losses.tau else {}
        return self.objective(pairs, **{**self.settings, **more})

    @property
    def least_negatives(self) -> int:
        """How many negatives it needs: as many as it picks."""
        return max((c.k or 1 for c in steps(self.settings.get("negatives")) if isinstance(c, Hardest)), default=1)

    def at_scale(self, factor: float) -> Subject:
        """The same with its temperature multiplied; itself, where it has none."""
        name, power, _ = _SOFTNESS.get(self.objective, ("temperature", 1, 1.0))
        value = self._setting(name)
        if value is None:
            return self
        return replace(self, settings={**self.settings, name: _times(value, factor**power)})

    def nominal_temperature(self, s: Tensor, positive: float = 0.7) -> Tensor | None:
        """τ(s) by its settings: s/τ is the exponent. None where it has no temperature."""
        name, power, factor = _SOFTNESS.get(self.objective, ("temperature", 1, 1.0))
        value = self._setting(name)
        if value is None or (self.objective is losses.cacr and self.settings.get("repulsion") == "uniform"):
            return None
        if power == -1 and value == 0:  # every negative weighs the same
            return None
        if self.objective is losses.macl:
            keywords = {key: self._setting(key) for key in ("alpha", "center")}
            value = float(adaptive(s.new_full((1, 1), positive), base=value, **keywords))
        if self.objective is losses.tau:
            value = 2 * value  # sigmoid(0) = 1/2
        if callable(value):
            found: Tensor = value(s)
            return found
        return torch.full_like(s, float(value) if power == 1 else 1 / (factor * value))

    def _setting(self, name: str) -> Any:
        if name in self.settings:
            return self.settings[name]
        known = inspect.signature(self.objective).parameters
        return known[name].default if name in known else None


def _times(value: Any, factor: float) -> Any:
    if isinstance(value, Profile):
        return replace(value, low=value.low * factor, high=value.high * factor)
    return partial(_product, value, factor) if callable(value) else value * factor


def _product(function: Callable[[Tensor], Tensor], factor: float, s: Tensor) -> Tensor:
    return factor * function(s)
