"""Projectors and predictors: from features to the embeddings that a loss compares."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

from torch import nn

from contrapose.validate import check_known


def mlp(widths: tuple[int, ...], *, norm: bool = True, last_norm: str = "none", bias: bool = False) -> nn.Sequential:
    """Return linear layers, each but the last followed by batch norm (with `norm`) and ReLU.

    last_norm: "none", "affine" (batch norm after the last layer too) or "plain" (batch norm without scale and shift).
    """
    layers: list[nn.Module] = []
    for i, (width_in, width_out) in enumerate(itertools.pairwise(widths)):
        is_last = i == len(widths) - 2
        layers.append(nn.Linear(width_in, width_out, bias=bias))
        if not is_last:
            layers += [nn.BatchNorm1d(width_out), nn.ReLU()] if norm else [nn.ReLU()]
        elif last_norm != "none":
            # No ReLU here: embeddings need both signs.
            layers.append(nn.BatchNorm1d(width_out, affine=last_norm == "affine"))
    return nn.Sequential(*layers)


def _fc8(width: int, out: int) -> nn.Linear:
    """Return the last layer of the small AlexNet, initialised like its other layers."""
    layer = nn.Linear(width, out)
    nn.init.normal_(layer.weight, std=0.02)
    nn.init.zeros_(layer.bias)
    return layer


# (number of features, embedding dimension or 0 for the paper's) -> projector
HEADS: Mapping[str, Callable[[int, int], nn.Module]] = {
    "simclr": lambda d, out: mlp((d, d, out or 128), last_norm="affine"),  # DySTreSS (lightly)
    "hcl": lambda d, out: mlp((d, 512, out or 128), bias=True),  # Robinson et al.; CACR with ResNet-50
    "balanced": lambda d, out: mlp((d, 2048, 2048, out or 2048), last_norm="affine"),  # Lee, ImageNet
    "balanced-cifar": lambda d, out: mlp((d, 2048, out or 2048), last_norm="affine"),  # Lee, CIFAR-10
    "moco-v2": lambda d, out: mlp((d, d, out or 128), norm=False, bias=True),
    "moco-v3": lambda d, out: mlp((d, 4096, out or 256), last_norm="plain"),
    "moco-v3-vit": lambda d, out: mlp((d, 4096, 4096, out or 256), last_norm="plain"),
    "linear": lambda d, out: nn.Linear(d, out or 128),  # Wang & Liu
    "alexnet": lambda d, out: _fc8(d, out or 128),  # CACR
}


def head(name: str, width: int, out: int = 0) -> nn.Module:
    """Return a projector by name for `width` features; `out` overrides the paper's embedding dimension."""
    check_known("head", name, HEADS)
    return HEADS[name](width, out)


def predictor(width: int, hidden: int = 4096, *, last_norm: bool = False, bias: bool = False) -> nn.Module:
    """Return a predictor: width → hidden (batch norm, ReLU) → width.

    last_norm   batch norm without scale and shift at the end, as MoCo v3 has it for a ViT
    bias        whether the last layer has a bias, as in BYOL, SimSiam and NNCLR; the first is followed by a norm and needs none
    """
    layers = mlp((width, hidden, width), last_norm="plain" if last_norm else "none")
    if bias:
        layers[-1] = nn.Linear(hidden, width)
    return layers
