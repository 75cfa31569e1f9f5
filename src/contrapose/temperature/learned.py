"""Settings that are learned with the network: a temperature, and a number of either sign."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import overload

import torch
from torch import Tensor, nn

from contrapose.validate import check_number


class Learned(nn.Module, ABC):
    """A setting of an objective that has a parameter; calling it returns its present value."""

    @abstractmethod
    def forward(self) -> Tensor:
        """Return the present value, a tensor without dimensions."""

    def extra_repr(self) -> str:
        """The present value, for `print`."""
        return f"{float(self().detach()):g}"


class LearnedTemperature(Learned):
    """One temperature for all anchors, τ = e^θ, with θ a parameter: positive whatever the optimiser does.

    `Loss(nt_xent, temperature=learned(0.1))` owns the parameter; pass `criterion.parameters()` to the optimiser. With
    bounds, θ itself is reset to the nearest bound before it is used, as CLIP does after each step. Clamping only the
    value would give no gradient beyond the bound, and the parameter could not come back.
    """

    def __init__(self, start: float, *, low: float | None = None, high: float | None = None) -> None:
        super().__init__()
        for name, value in (("start", start), ("low", low), ("high", high)):
            if value is not None:
                check_number(name, value, above=0.0)
        if not (low or 0.0) <= start <= (high or math.inf):
            raise ValueError(
                f"start, low, high: expected low ≤ start ≤ high, got start={start!r}, low={low!r} and high={high!r}"
            )
        self.low, self.high = low, high
        self.log_temperature = nn.Parameter(torch.tensor(math.log(start)))

    def forward(self) -> Tensor:
        """Return the temperature, a tensor without dimensions."""
        self._return_to_bounds()
        return self.log_temperature.exp()

    def inverse(self) -> Tensor:
        """Return 1 / temperature, a tensor without dimensions."""
        self._return_to_bounds()
        return torch.exp(-self.log_temperature)

    @torch.no_grad()
    def _return_to_bounds(self) -> None:
        if self.low is not None or self.high is not None:
            low, high = (None if bound is None else math.log(bound) for bound in (self.low, self.high))
            # Through `.data`, since a change that autograd notices would invalidate existing graphs.
            self.log_temperature.data.clamp_(low, high)

    def extra_repr(self) -> str:
        """The present value and the bounds, for `print`."""
        bounds = {"low": self.low, "high": self.high}
        return ", ".join([super().extra_repr(), *(f"{k}={v:g}" for k, v in bounds.items() if v is not None)])


class TemperatureNet(nn.Module):
    """One temperature per anchor, τ_i = low + (high - low) · sigmoid(net(z_i)), predicted from its embedding (TempNet).

    `Loss` calls it with the anchors: unit vectors without gradient, so that only the net learns from the temperature.
    """

    def __init__(self, net: nn.Module, *, low: float, high: float) -> None:
        super().__init__()
        check_number("low", low, above=0.0)
        check_number("high", high, above=low)
        self.net, self.low, self.high = net, low, high

    def forward(self, anchors: Tensor) -> Tensor:
        """Return the temperatures (n,) of anchors (n, d)."""
        score = self.net(anchors.detach())
        if not isinstance(score, Tensor) or score.shape not in ((len(anchors),), (len(anchors), 1)):
            received = tuple(score.shape) if isinstance(score, Tensor) else type(score).__name__
            raise ValueError(f"net: expected one number per anchor, shape ({len(anchors)},) or (…, 1), got {received}")
        temperature: Tensor = self.low + (self.high - self.low) * torch.sigmoid(score.reshape(-1))
        return temperature

    def extra_repr(self) -> str:
        """The range, for `print`."""
        return f"low={self.low:g}, high={self.high:g}"


class LearnedNumber(Learned):
    """One number of either sign, such as SigLIP's bias; the number itself is the parameter."""

    def __init__(self, start: float) -> None:
        super().__init__()
        check_number("start", start)
        self.value = nn.Parameter(torch.tensor(float(start)))

    def forward(self) -> Tensor:
        """Return the number, a tensor without dimensions."""
        return self.value


@overload
def learned(start: float = 0.1, *, low: float | None = None, high: float | None = None) -> LearnedTemperature: ...
@overload
def learned(start: nn.Module, *, low: float, high: float) -> TemperatureNet: ...
def learned(
    start: float | nn.Module = 0.1, *, low: float | None = None, high: float | None = None
) -> LearnedTemperature | TemperatureNet:
    """Return a learned temperature that starts at `start` and stays between `low` and `high`.

    CLIP's temperature is `learned(0.07, low=0.01)`: its scale 1/τ is at most 100. With a network in place of the number, each
    anchor has its own temperature, low + (high - low) · sigmoid(net(z)), as in TempNet (Qiu et al., arXiv 2404.04575):
    `Loss(fastclip, temperature=learned(net, low=0.005, high=0.05))`. It needs `Loss`, which passes the anchors.

    start       first value, or a module that maps anchors (n, d) to one number each, (n,) or (n, 1)
    low, high   bounds; default: none; a module needs both
    """
    if not isinstance(start, nn.Module):
        return LearnedTemperature(start, low=low, high=high)
    if low is None or high is None:
        raise ValueError(
            f"low, high: expected the range of the temperatures that a network predicts, got {low} and {high}"
        )
    return TemperatureNet(start, low=low, high=high)


def learned_number(start: float) -> LearnedNumber:
    """Return a learned number of either sign that starts at `start`, such as the bias of `siglip`.

    start   first value
    """
    return LearnedNumber(start)
