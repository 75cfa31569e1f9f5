"""A prefix of an embedding in forms that can be written to files: a network, or one linear layer after the encoder."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize


class PrefixNetwork(nn.Module):
    """An encoder's network and its projector, of whose output only the first coordinates remain, as unit vectors."""

    def __init__(self, network: nn.Module, projector: nn.Module, dims: int) -> None:
        super().__init__()
        self.network, self.projector, self.dims = network, projector, dims

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the embeddings (B, dims) of inputs."""
        # Not `unit`, whose backward pass is its own and not needed here: graphs of it cannot be exported.
        return normalize(self.projector(self.network(inputs))[:, : self.dims], dim=1)


@dataclass(frozen=True, eq=False)
class Dense:
    """A linear layer with an activation, as in sentence-transformers."""

    weight: Tensor  # (dims, width)
    bias: Tensor | None  # (dims,)
    activation: nn.Module  # applied to each output alone


def dense_prefix(projector: nn.Module, width: int, dims: int) -> Dense | None:
    """Return the one layer that computes the first outputs of a projector; None if the projector has hidden layers.

    projector   projector for `width` features
    width       number of features
    dims        number of outputs
    """
    if isinstance(projector, nn.Identity):
        return Dense(torch.eye(dims, width), None, nn.Identity())
    layer, *rest = projector.children() if isinstance(projector, nn.Sequential) else [projector]
    if not isinstance(layer, nn.Linear) or not all(isinstance(module, nn.Tanh) for module in rest) or len(rest) > 1:
        return None
    bias = None if layer.bias is None else layer.bias[:dims]
    return Dense(layer.weight[:dims], bias, rest[0] if rest else nn.Identity())
