"""A loss to be explained, with all of its settings and its temperature."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from contrapose.losses.catalogue import Method
from contrapose.losses.module import Loss
from contrapose.losses.objective import WeightedSum, added_to, traits_of
from contrapose.losses.parse import parse
from contrapose.pairs import AnyPairs
from contrapose.pairs.negatives import Hardest, steps
from contrapose.temperature import Learned, Profile, Schedule

Explainable: TypeAlias = str | Method | Loss | Callable[..., Tensor]


def _objective_of(loss: Explainable, data: str | None) -> partial[Tensor]:
    """Return a loss as a function of pairs with its settings."""
    if isinstance(loss, str):
        return parse(loss, data)
    if isinstance(loss, Loss):
        own = partial(loss.objective, **loss.settings)
        added = [(weight, _objective_of(part, data)) for weight, part in zip(loss.weights, loss.added, strict=True)]
        return WeightedSum.of(own, tuple(added)) if added else own
    if isinstance(loss, Method):
        return loss(data)
    if not callable(loss):
        raise ValueError(f"loss: expected text such as 'dystress', a function of pairs or a Loss, got {loss!r}")
    return loss if isinstance(loss, partial) else partial(loss)


@dataclass(frozen=True)
class Subject:
    """A named objective with its settings."""

    name: str
    objective: Callable[..., Tensor]
    settings: dict[str, Any]
    added: tuple[tuple[float, Subject], ...] = ()  # further parts of a sum that are functions of similarities
    left_out: tuple[str, ...] = ()  # names of parts that are not

    @classmethod
    def of(cls, loss: Explainable, data: str | None = None, *, epoch: int = 0) -> Subject:
        """Return a loss, given as text, as a function of pairs or as a `Loss`; a schedule takes its value at `epoch`."""
        chosen = _objective_of(loss, data)
        name = loss if isinstance(loss, str) else getattr(chosen.func, "__name__", "loss")
        if traits_of(chosen.func).takes != "pairs":
            raise ValueError(
                f"loss: {name} is not a loss of similarities, so there is no penalty on a similarity to show"
            )
        settings = {name: _current(value, epoch) for name, value in chosen.keywords.items()}
        of_pairs = [part for part in added_to(chosen) if traits_of(part[1].func).takes == "pairs"]
        added = tuple((weight, cls.of(term, epoch=epoch)) for weight, term in of_pairs)
        left_out = tuple(term.func.__name__ for weight, term in added_to(chosen) if (weight, term) not in of_pairs)
        return cls(name, chosen.func, settings, added, left_out)

    def __call__(self, pairs: AnyPairs) -> Tensor:
        """Return the loss. Arguments that a network or a state would provide take their values before training."""
        traits = traits_of(self.objective)
        settings = {name: value for name, value in self.settings.items() if name not in traits.state_settings}
        if traits.untrained is not None:
            settings |= traits.untrained(self.settings, pairs.shape[0])
        total = self.objective(pairs, **settings)
        for weight, part in self.added:
            total = total + weight * part(pairs)
        return total

    @property
    def least_negatives(self) -> int:
        """The smallest number of negatives that the loss needs: as many as it selects."""
        return max((c.k or 1 for c in steps(self.settings.get("negatives")) if isinstance(c, Hardest)), default=1)

    def at_scale(self, factor: float) -> Subject:
        """Return the same loss with its temperature multiplied by `factor`; the loss itself if it has no temperature."""
        softness = traits_of(self.objective).softness
        value = self._setting(softness.setting)
        if value is None:
            return self
        return replace(self, settings={**self.settings, softness.setting: _times(value, factor**softness.power)})

    def nominal_temperature(self, s: Tensor, positive: float = 0.7) -> Tensor | None:
        """Return τ(s) according to the settings, where s/τ is the exponent; None if the loss has no temperature."""
        softness = traits_of(self.objective).softness
        value = self._setting(softness.setting)
        value = None if value is None else softness.nominal(value, self.settings, positive)
        if value is None or (softness.power == -1 and value == 0):  # at 0, every negative has the same weight
            return None
        if callable(value):
            temperature: Tensor = value(s)
            return temperature
        return torch.full_like(s, float(value) if softness.power == 1 else 1 / (softness.factor * value))

    def _setting(self, name: str) -> Any:
        if name in self.settings:
            return self.settings[name]
        known = inspect.signature(self.objective).parameters
        default = known[name].default if name in known else None
        return traits_of(self.objective).softness.start if default is None else default


def _current(value: Any, epoch: int) -> Any:
    """Return a setting's value: at this epoch if it is scheduled, its initial value if it is learned."""
    if isinstance(value, Schedule):
        return value.at(epoch)
    # Rounded to the digits of a float32 parameter: 0.1 and not 0.10000000149.
    return float(f"{float(value().detach()):.6g}") if isinstance(value, Learned) else value


def _times(value: Any, factor: float) -> Any:
    if isinstance(value, Profile):
        return replace(value, low=value.low * factor, high=value.high * factor)
    return partial(_product, value, factor) if callable(value) else value * factor


def _product(function: Callable[[Tensor], Tensor], factor: float, s: Tensor) -> Tensor:
    return factor * function(s)
