"""A temperature that is learned with the network."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from contrapose.validate import check_number


class LearnedTemperature(nn.Module):
    """One temperature for all anchors, τ = e^θ, with θ a parameter: positive whatever the optimiser does.

    `Loss(nt_xent, temperature=learned(0.1))` owns the parameter; give `criterion.parameters()` to the optimiser.
    """

    def __init__(self, start: float) -> None:
        super().__init__()
        check_number("start", start, above=0.0)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(start)))

    def forward(self) -> Tensor:
        """Return the temperature, a tensor without dimensions."""
        return self.log_temperature.exp()

    def extra_repr(self) -> str:
        """The present value, for `print`."""
        return f"{float(self().detach()):g}"


def learned(start: float = 0.1) -> LearnedTemperature:
    """Return a temperature that is learned, from `start` on."""
    return LearnedTemperature(start)
