"""`Encoder`: a network that maps inputs to features and knows the number of features."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class Encoder(nn.Module):
    """A network without its classifier; it returns `width` features per sample."""

    def __init__(self, network: nn.Module, width: int) -> None:
        super().__init__()
        self.network, self.width = network, width

    def forward(self, inputs: Any) -> Tensor:
        """Map a batch of the modality's inputs to features (B, width)."""
        features: Tensor = self.network(inputs)
        return features
