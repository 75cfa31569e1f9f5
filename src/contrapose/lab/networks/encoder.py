"""`Encoder`: a network that maps inputs to features, and the number of features."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class Encoder(nn.Module):
    """A network without its classifier; it returns `width` features per sample."""

    def __init__(self, network: nn.Module, width: int) -> None:
        super().__init__()
        self.network, self.width = network, width

    def forward(self, inputs: Any) -> Tensor:
        """Map a batch, in the form of its modality, to features (B, width)."""
        features: Tensor = self.network(inputs)
        return features
