"""`Tower`: the networks that inputs of one modality pass through."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from contrapose.networks.encoder import Encoder


@dataclass(frozen=True, eq=False)
class Tower:
    """An encoder and the projector after it. SimCLR has one tower; a network for images and texts has two."""

    encoder: Encoder
    projector: nn.Module
    width: int  # dimensions of the embedding
