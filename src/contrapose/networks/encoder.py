"""`Encoder`: a network that turns inputs into features, with the number of features."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class Encoder(nn.Module):
    """A network without its classifier; `width` features for each sample."""

    def __init__(self, network: nn.Module, width: int) -> None:
        super().__init__()
        self.network, self.width = network, width

    def forward(self, inputs: Any) -> Tensor:
        """Inputs of a batch, as the modality makes them -> (B, width)."""
        features: Tensor = self.network(inputs)
        return features
