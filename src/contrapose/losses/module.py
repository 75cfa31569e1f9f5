"""The `nn.Module` face, for people who expect a criterion."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from contrapose.losses.catalogue import CATALOGUE, Method
from contrapose.losses.softmax import macl
from contrapose.pairs import AnyPairs, Pairs, Similarities, two_views, views
from contrapose.temperature import PerSample, Schedule
from contrapose.validate import nearest


class Loss(nn.Module):
    """An objective with its settings, called with two views, with V views (V, m, d), or with `Pairs`.

    >>> import torch
    >>> from contrapose.losses import nt_xent
    >>> from contrapose.temperature import cosine
    >>> criterion = Loss(nt_xent, temperature=cosine(0.07, 0.2))
    >>> z1, z2 = torch.eye(4), torch.eye(4)
    >>> round(criterion(z1, z2).item(), 4)
    0.0396

    A setting that is a schedule takes its value at `criterion.epoch`, which the training loop sets. One that is an
    `nn.Parameter` or module (a learned temperature) belongs to the criterion. With `state` (`isogclr`) the criterion
    reads it, needs `ids` (data-set indices), and moves it after each call in training mode.
    """

    def __init__(
        self, objective: Callable[..., Tensor] | Method, *, state: PerSample | None = None, **settings: Any
    ) -> None:
        super().__init__()
        if not callable(objective):
            named = f"; CATALOGUE[{objective!r}] has it" if objective in CATALOGUE else ""
            raise ValueError(f"objective: expected a function of pairs such as nt_xent, got {objective!r}{named}")
        if state is not None and not isinstance(state, PerSample):
            raise ValueError(f"state: expected a PerSample(number_of_images), got {state!r}")
        if isinstance(objective, Method):
            objective = objective()
        if isinstance(objective, partial):  # what a method of the catalogue makes
            settings, objective = {**objective.keywords, **settings}, objective.func
        _check_settings(objective, settings)
        self.objective, self.settings, self.state, self.epoch = objective, settings, state, 0
        self.held: dict[str, Tensor] = {}
        for name, value in settings.items():  # a learned temperature is learned, moved and saved with the module
            if isinstance(value, nn.Parameter):
                self.register_parameter(name, value)
            elif isinstance(value, nn.Module):
                self.add_module(name, value)

    def forward(
        self, z: Tensor | AnyPairs, z2: Tensor | None = None, *, ids: Tensor | None = None, **more: Any
    ) -> Tensor:
        """The loss. `more` overrides settings for this call, such as a per-anchor temperature."""
        if self.state is not None and ids is None and isinstance(z, Tensor):
            raise ValueError("ids: expected the data-set index of each image, since the state is kept for each of them")
        pairs = self._pairs(z, z2, ids)
        settings = {**self.settings, **self.held, **(self.state(pairs) if self.state is not None else {}), **more}
        at_epoch = {name: s.at(self.epoch) if isinstance(s, Schedule) else s for name, s in settings.items()}
        loss = self.objective(pairs, **at_epoch)
        if self.state is not None and self.training:
            self.state.update(pairs, negatives=settings.get("negatives"))
        return loss

    @property
    def can_hold_schedules(self) -> bool:
        """Whether tensors can take the place of what is scheduled: of temperatures that objectives take as tensors."""
        scheduled = {name for name, s in self.settings.items() if isinstance(s, Schedule)}
        return not scheduled or (scheduled == {"temperature"} and self.objective is not macl)

    def hold_schedules(self, device: torch.device) -> None:
        """Keep what schedules say in tensors, for a recorded graph; `refresh_schedules` brings them up to date."""
        scheduled = [name for name, s in self.settings.items() if isinstance(s, Schedule)]
        self.held = {name: torch.zeros((), device=device) for name in scheduled}
        self.refresh_schedules()

    def refresh_schedules(self) -> None:
        """Put the epoch's values into the tensors."""
        for name, tensor in self.held.items():
            tensor.fill_(self.settings[name].at(self.epoch))

    def extra_repr(self) -> str:
        """Objective and settings, for `print`."""
        name = getattr(self.objective, "__name__", repr(self.objective))
        return ", ".join([name, *(f"{key}={value!r}" for key, value in self.settings.items())])

    @staticmethod
    def _pairs(z: Tensor | AnyPairs, z2: Tensor | None, ids: Tensor | None) -> AnyPairs:
        if not isinstance(z, Pairs | Similarities):
            return two_views(z, z2, ids=ids) if z2 is not None else views(z, ids=ids)
        if z2 is not None or ids is not None:
            raise ValueError("z: expected pairs alone, since they hold both views and their ids")
        return z


def _check_settings(objective: Callable[..., Tensor], settings: Mapping[str, Any]) -> None:
    """Refuse a setting that the objective does not have, before the first batch does."""
    known = signature(objective).parameters
    if any(p.kind is p.VAR_KEYWORD for p in known.values()):
        return
    for name in settings:
        if name not in known:
            has = [p for p in known if p != "pairs"]
            raise ValueError(f"{name}: {objective.__name__} has the settings {', '.join(has)}{nearest(name, has)}")
