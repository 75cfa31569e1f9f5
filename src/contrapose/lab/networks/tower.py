"""`Tower`: the networks that inputs of one modality pass through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from contrapose.lab.networks.encoder import Encoder


@dataclass(frozen=True, eq=False)
class Tower:
    """An encoder and the projector after it. SimCLR has one tower; a network for images and texts has two."""

    encoder: Encoder
    projector: nn.Module
    width: int  # dimensions of the embedding


def encoder_of(towers: Mapping[str, Tower]) -> nn.Module:
    """Return the encoder of a single tower, or the encoders of several towers by name."""
    return _only({name: tower.encoder for name, tower in towers.items()})


def projector_of(towers: Mapping[str, Tower]) -> nn.Module:
    """Return the projector of a single tower, or the projectors of several towers by name."""
    return _only({name: tower.projector for name, tower in towers.items()})


def towers_of(encoder: nn.Module, projector: nn.Module, *, name: str) -> dict[str, Tower]:
    """Return towers made of these encoders and projectors, the inverse of `encoder_of` and `projector_of`.

    name   name of the tower if there is only one
    """
    if isinstance(encoder, nn.ModuleDict) and isinstance(projector, nn.ModuleDict):
        return {
            side: tower for side in encoder for tower in towers_of(encoder[side], projector[side], name=side).values()
        }
    if not isinstance(encoder, Encoder):
        raise TypeError(f"encoder: expected an Encoder, or a ModuleDict of encoders, got {type(encoder).__name__}")
    return {name: Tower(encoder, projector, embedding_width(encoder, projector))}


def embedding_width(encoder: Encoder, projector: nn.Module) -> int:
    """Return the projector's number of outputs: the width of its last layer, or the encoder's width if it has no layers."""
    layers = [module for module in projector.modules() if isinstance(module, nn.Linear)]
    return layers[-1].out_features if layers else encoder.width


def _only(modules: dict[str, nn.Module]) -> nn.Module:
    return nn.ModuleDict(modules) if len(modules) > 1 else next(iter(modules.values()))
