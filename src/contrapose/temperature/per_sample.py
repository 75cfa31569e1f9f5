"""`PerSample` and `MovingAverage`: a temperature and a moving average for each training image (SogCLR, iSogCLR, FastCLIP)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from contrapose.embeddings import State
from contrapose.pairs import AnyPairs, Negatives
from contrapose.reduce import Count, Expectation, Logit, LogSumExp, Scale
from contrapose.temperature.schedule import Schedule
from contrapose.temperature.to_logit import Temperature, temperature_logit
from contrapose.validate import check_number, check_values

START_TEMPERATURE = 0.07  # the default of `fastclip`, as in the authors' code


class _SampleState(State):
    """A state with a moving average for each of `size` images, by data-set index; one for each tower."""

    log_average: Tensor
    gamma: float | Schedule

    def __init__(self, size: int, *, towers: int, gamma: float | Schedule) -> None:
        super().__init__()
        if not isinstance(size, int):
            raise ValueError(f"size: expected the number of images, got {size!r}")
        check_number("size", size, least=1)
        if not isinstance(towers, int):
            raise ValueError(f"towers: expected the number of towers, got {towers!r}")
        check_number("towers", towers, least=1)
        if not isinstance(gamma, Schedule):
            check_number("gamma", gamma, above=0.0, most=1.0)
        self.size, self.towers, self.gamma = size, towers, gamma
        self.register_buffer("log_average", torch.full((towers * size,), -torch.inf))

    @property
    def is_scheduled(self) -> bool:  # type: ignore[override]
        """Whether γ depends on the epoch."""
        return isinstance(self.gamma, Schedule)

    def _current_gamma(self, gamma: float | None) -> float:
        current = self.gamma if gamma is None else gamma
        if isinstance(current, Schedule):
            raise ValueError("gamma: a schedule needs an epoch: pass gamma=schedule.at(epoch)")
        return current

    def _average(self, index: Tensor, log_g: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
        """Update the averages of a batch; return log u of each anchor before the mean over its image, and the images' groups."""
        log_u = log_moving_average(self.log_average[index], log_g, gamma)
        # An image has several anchors, one per view. All of them write the same mean, since the order of writes is undefined.
        group = _group_numbers(index)
        self.log_average[index] = _group_log_mean_exp(log_u, group).to(self.log_average.dtype)
        return log_u, group

    def _index(self, pairs: AnyPairs) -> Tensor:
        """Return each anchor's position in the buffers: its data-set index, offset by the entries of earlier towers."""
        index, size = pairs.anchor_id, self.size
        if index is None:
            raise ValueError("pairs: per-sample temperatures need image ids, which bare similarities do not have")
        check_values(
            (index >= 0) & (index < size),
            lambda: (
                f"pairs: expected image ids from 0 to {size - 1} (pass ids= when making the pairs), "
                f"got values from {int(index.min())} to {int(index.max())}"
            ),
        )
        if self.towers == 1:
            return index
        if pairs.view_count != self.towers or pairs.anchor_view is None:
            raise ValueError(
                f"pairs: expected the anchors of {self.towers} towers, one view each, got {pairs.view_count} "
                f"(two_views(a, b), or towers=1 for views that share their state)"
            )
        return index + pairs.anchor_view * size


class PerSample(_SampleState):
    """State of SogCLR (`adapt=False`) and iSogCLR: u_n, τ_n and its momentum v_n for each of `size` images.

        u_n ← (1-γ) u_n + γ g_n              g: mean of exp(s/τ_n) over the negatives; γ = 1 at the first visit
        v_n ← (1-β) v_n + β G_n,             G = log u + ρ - Σ_k w_k s_k / τ_n, clipped to ±3
        τ_n ← clip(τ_n - η v_n, low, high)

    With `scale` c, a number or a schedule, the loss and u have the temperature c τ_n, and G its factor c, by the chain rule.

    With `towers=2` the two views of a pair, such as image and text, have separate states (bimodal SogCLR): in the buffers,
    the second tower's states follow the first tower's. γ may be a schedule, which `Loss` evaluates at its epoch.

    The pairs' ids must be data-set indices. `settings` returns the arguments of `sogclr`; call `update` after the step:

        loss = sogclr(pairs, **state.settings(pairs))
        loss.backward(); optimizer.step(); state.update(pairs)

    Averages are stored as logarithms, so that they do not overflow at any temperature.

    size              number of images in the data set
    towers            1, or 2 for separate states of two views
    temperature       initial τ of all images
    gamma             γ, a number or a schedule
    adapt             whether temperatures are learned (iSogCLR)
    rho, beta, rate   ρ, β and η
    low, high         range of τ
    clip              bound of |G|
    scale             c, a number or a schedule: the temperature of image n is c τ_n
    """

    replaces = ("temperature", "gamma", "log_average")
    temperature: Tensor
    velocity: Tensor

    def __init__(
        self,
        size: int,
        *,
        towers: int = 1,
        temperature: float = 0.1,
        gamma: float | Schedule = 0.8,
        adapt: bool = True,
        rho: float = 0.4,
        beta: float = 0.5,
        rate: float = 0.03,
        low: float = 0.05,
        high: float = 1.0,
        clip: float = 3.0,
        scale: float | Schedule = 1.0,
    ) -> None:
        super().__init__(size, towers=towers, gamma=gamma)
        for name, value in (("low", low), ("temperature", temperature), ("rate", rate), ("clip", clip)):
            check_number(name, value, above=0.0)
        check_number("beta", beta, above=0.0, most=1.0)
        if not isinstance(scale, Schedule):
            check_number("scale", scale, above=0.0)
        check_number("rho", rho)
        check_number("high", high, least=low)
        if adapt and not low <= temperature <= high:
            raise ValueError(f"temperature: expected low ≤ temperature ≤ high, got {low}, {temperature}, {high}")
        self.adapt, self.rho, self.beta = adapt, rho, beta
        self.rate, self.low, self.high, self.clip, self.scale = rate, low, high, clip, scale
        self.register_buffer("temperature", torch.full((towers * size,), float(temperature)))
        self.register_buffer("velocity", torch.zeros(towers * size))

    @property
    def is_scheduled(self) -> bool:  # type: ignore[override]
        """Whether γ or c depends on the epoch."""
        return super().is_scheduled or isinstance(self.scale, Schedule)

    def settings(self, batch: AnyPairs) -> dict[str, Any]:
        """Return the keyword arguments of `sogclr` for these pairs: temperature, log_average and gamma."""
        index = self._index(batch)
        return {
            # A schedule times these temperatures is a schedule, which `Loss` evaluates at its epoch.
            "temperature": self.temperature[index] if self.scale == 1.0 else self.scale * self.temperature[index],
            "log_average": self.log_average[index],
            "gamma": self.gamma,
        }

    @torch.no_grad()
    def update(
        self,
        batch: AnyPairs,
        *,
        negatives: Negatives = None,
        gamma: float | None = None,
        temperature: Tensor | None = None,
        **settings: Any,
    ) -> None:
        """Update the state of the images in this batch after the loss, with the negatives, γ and c τ_n of this step."""
        index, current = self._index(batch), self._current_gamma(gamma)
        tau = self.settings(batch)["temperature"] if temperature is None else temperature
        if isinstance(tau, Schedule):
            raise ValueError(
                "scale: a schedule needs an epoch: pass temperature=state.settings(pairs)['temperature'].at(epoch)"
            )
        logit = Scale(1.0 / tau)  # the temperature of this step, before it moves
        total, pull, count = batch.reduce(LogSumExp(logit), Expectation(logit), Count(), negatives=negatives)
        log_g = total - count.log()
        log_u, group = self._average(index, log_g, current)
        if self.adapt:
            gradient = log_u + self.rho - (log_g - log_u).exp() * pull / tau
            gradient = gradient * (tau / self.temperature[index])  # c
            gradient = _group_mean(gradient, group).clamp(-self.clip, self.clip)
            velocity = (1 - self.beta) * self.velocity[index] + self.beta * gradient.to(self.velocity.dtype)
            temperature = self.temperature[index] - self.rate * velocity
            self.velocity[index] = velocity
            self.temperature[index] = temperature.clamp(self.low, self.high)


class MovingAverage(_SampleState):
    """State of `fastclip`: log u_n of each of `size` images, u_n ← (1-γ) u_n + γ g_n; γ = 1 at the first visit (FastCLIP).

    g is the mean of exp((s_k - s⁺)/τ) over the negatives. The temperature is not part of the state: it is one learned number.
    The pairs' ids must be data-set indices. With `towers=2`, the two sides of a pair have separate averages.

        Loss(fastclip, temperature=learned(0.07, low=0.01), state=MovingAverage(number_of_pairs))

    size     number of images in the data set
    towers   2 for separate averages of two views, such as image and text, or 1
    gamma    γ, a number or a schedule
    """

    replaces = ("gamma", "log_average")

    def __init__(self, size: int, *, towers: int = 2, gamma: float | Schedule = 0.8) -> None:
        super().__init__(size, towers=towers, gamma=gamma)

    def settings(self, batch: AnyPairs) -> dict[str, Any]:
        """Return the keyword arguments of `fastclip` for these pairs: log_average and gamma."""
        return {"log_average": self.log_average[self._index(batch)], "gamma": self.gamma}

    @torch.no_grad()
    def update(
        self,
        batch: AnyPairs,
        *,
        negatives: Negatives = None,
        gamma: float | None = None,
        temperature: Temperature | None = None,
        **settings: Any,
    ) -> None:
        """Update the averages of this batch after the loss, with the same negatives, temperature and γ."""
        used = START_TEMPERATURE if temperature is None else temperature
        log_g = log_relative_mean(batch, temperature_logit(used, batch.shape[0]), negatives)
        self._average(self._index(batch), log_g, self._current_gamma(gamma))


def log_relative_mean(batch: AnyPairs, logit: Logit, negatives: Negatives) -> Tensor:
    """Return log g, g the mean of e^{φ(s_k) - φ(s⁺)} over the anchor's negatives and positives, (n,)."""
    total, count = batch.reduce(LogSumExp(logit), Count(), negatives=negatives)
    positives = logit(batch.positives())
    return total - count.log() + (-positives).logsumexp(1) - math.log(positives.shape[1])


def log_moving_average(log_average: Tensor, log_g: Tensor, gamma: float) -> Tensor:
    """Return log((1-γ) u + γ g), or log g where there is no average yet (u = 0)."""
    if gamma == 1.0:  # log(1-γ) would be infinite
        return log_g
    average = torch.logaddexp(log_average + math.log1p(-gamma), log_g + math.log(gamma))
    return torch.where(log_average == -torch.inf, log_g, average)


def _group_numbers(index: Tensor) -> Tensor:
    """Return a number for each anchor, equal for anchors of the same image."""
    # Not torch.unique: the size of its result is unknown to the host, which would have to wait for the device.
    ordered, order = index.sort()
    changes = (ordered.diff() != 0).cumsum(0)
    return torch.zeros_like(order).scatter(0, order[1:], changes)


def _group_mean(values: Tensor, group: Tensor) -> Tensor:
    """Return for each anchor the mean over the anchors of its image."""
    zero = torch.zeros_like(values)
    return (zero.index_add(0, group, values) / zero.index_add(0, group, torch.ones_like(values)))[group]


def _group_log_mean_exp(log_values: Tensor, group: Tensor) -> Tensor:
    """Return for each anchor the log of the mean of exp(log_values) over the anchors of its image."""
    # The largest value is subtracted before exp, so that nothing overflows.
    largest = torch.full_like(log_values, -torch.inf).scatter_reduce(0, group, log_values, "amax")[group]
    return _group_mean((log_values - largest).exp(), group).log() + largest
