"""Projectors have the layers of the papers and of lightly, one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lightly.models.modules import heads as lightly_heads
from torch import nn

from contrapose.lab.networks.heads import HEADS, head
from contrapose.lab.training import Run
from contrapose.lab.training.build import build_towers

# Our head on so many features, and lightly's.
PEERS: dict[str, tuple[int, Callable[[], Any]]] = {
    "simclr": (2048, lambda: lightly_heads.SimCLRProjectionHead()),
    "simclr-v2": (2048, lambda: lightly_heads.SimCLRProjectionHead(num_layers=3)),
    "byol": (2048, lambda: lightly_heads.BYOLProjectionHead()),
    "byol-cifar": (512, lambda: lightly_heads.BYOLProjectionHead(512, 1024, 256)),
    "simsiam": (2048, lambda: lightly_heads.SimSiamProjectionHead()),
    "nnclr": (2048, lambda: lightly_heads.NNCLRProjectionHead()),
    "barlow-twins": (2048, lambda: lightly_heads.BarlowTwinsProjectionHead()),
    "vicreg": (2048, lambda: lightly_heads.VICRegProjectionHead()),
    "vicreg-lightly": (2048, lambda: lightly_heads.VICRegProjectionHead(num_layers=2)),
    "swav": (2048, lambda: lightly_heads.SwaVProjectionHead()),
    "swav-cifar": (512, lambda: lightly_heads.SwaVProjectionHead(512, 512, 128)),
    "dino": (2048, lambda: lightly_heads.DINOProjectionHead(output_dim=2)),
}
# As written in lightly's benchmark on CIFAR-10, whose two-layer heads have no class of their own.
_HIDDEN = "2048 batch norm, ReLU"
LAYERS = {
    "simsiam-cifar": ["Linear 512 2048", _HIDDEN, "Linear 2048 2048", "2048 batch norm"],
    "barlow-twins-cifar": ["Linear 512 2048", _HIDDEN, "Linear 2048 2048 bias"],
    "nnclr-cifar": ["Linear 512 2048", _HIDDEN, "Linear 2048 256", "256 batch norm"],
    "dino-cifar": ["Linear 512 2048", "2048 batch norm, GELU", "Linear 2048 256 bias"],
    # The authors' own: htdt/self-supervised and Sherrylone/Zero-CL
    "w-mse": ["Linear 512 1024 bias", "1024 batch norm, ReLU", "Linear 1024 64 bias"],
    "zero-cl": ["Linear 512 2048", _HIDDEN, "Linear 2048 2048", _HIDDEN, "Linear 2048 2048"],
}


def layers(network: nn.Module) -> list[str]:
    """Return the linear layers and batch norms of a head in words, activations behind what they follow."""
    words: list[str] = []
    for module in network.modules():
        if isinstance(module, nn.Linear):
            words.append(f"Linear {module.in_features} {module.out_features}{' bias' * (module.bias is not None)}")
        elif isinstance(module, nn.BatchNorm1d):
            words.append(f"{module.num_features} batch norm{'' if module.affine else ' without scale'}")
        elif isinstance(module, nn.ReLU | nn.GELU):
            words[-1] += f", {type(module).__name__}"
    return words


@pytest.mark.filterwarnings("ignore:.*weight_norm")  # of lightly's DINO head, in torch
@pytest.mark.parametrize("name", sorted(PEERS))
def test_layers_are_those_of_lightly(name: str) -> None:
    width, peer = PEERS[name]
    with torch.device("meta"):  # no memory for 8192 x 8192 weights
        assert layers(head(name, width)) == layers(peer().layers)


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_layers_of_the_cifar_benchmark_and_of_the_authors(name: str) -> None:
    assert layers(head(name, 512)) == LAYERS[name]


@pytest.mark.filterwarnings("ignore:.*weight_norm")
def test_weights_of_dino_are_initialised_as_in_lightly() -> None:
    for network in (head("dino", 64), lightly_heads.DINOProjectionHead(64, output_dim=2).layers):
        linear = [module for module in network.modules() if isinstance(module, nn.Linear)]
        assert [round(layer.weight.std().item(), 3) for layer in linear] == [0.02] * 3
        assert not any(layer.bias.any() for layer in linear)


@pytest.mark.parametrize("name", sorted(HEADS))
def test_width_of_the_embedding(name: str) -> None:
    """`Tower.width` is that of the projector's output, also where --width is given."""
    runs = [Run(data="digits", head=name, width=width) for width in (0, 24)]
    with torch.device("meta"):
        default, given = (build_towers(run)["images"] for run in runs)
        features = torch.zeros(2, default.encoder.width)
        assert default.width == default.projector(features).shape[1] != 24
        assert given.width == given.projector(features).shape[1] == 24
