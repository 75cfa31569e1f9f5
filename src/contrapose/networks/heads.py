"""Projectors and predictors: from features to the embedding that a loss sees."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

from torch import nn

from contrapose.validate import check_known


def mlp(widths: tuple[int, ...], *, norm: bool = True, last_norm: str = "none", bias: bool = False) -> nn.Sequential:
    """Linear layers, each but the last followed by batch norm (with `norm`) and ReLU.

    last_norm: "none", "affine" (batch norm after the last layer too) or "plain" (the same without scale and shift).
    """
    layers: list[nn.Module] = []
    for place, (before, after) in enumerate(itertools.pairwise(widths)):
        last = place == len(widths) - 2
        layers.append(nn.Linear(before, after, bias=bias))
        if not last:
            layers += [nn.BatchNorm1d(after), nn.ReLU()] if norm else [nn.ReLU()]
        elif last_norm != "none":
            layers.append(nn.BatchNorm1d(after, affine=last_norm == "affine"))
    return nn.Sequential(*layers)


def _fc8(width: int, out: int) -> nn.Linear:
    """The small AlexNet's last layer, which begins as its others do."""
    layer = nn.Linear(width, out)
    nn.init.normal_(layer.weight, std=0.02)
    nn.init.zeros_(layer.bias)
    return layer


# (width of the features, width of the embedding or 0 for the paper's own) -> projector
HEADS: Mapping[str, Callable[[int, int], nn.Module]] = {
    "simclr": lambda d, out: mlp((d, d, out or 128), last_norm="affine"),  # DySTreSS (lightly)
    "hcl": lambda d, out: mlp((d, 512, out or 128), bias=True),  # Robinson et al.; CACR with ResNet-50
    "balanced": lambda d, out: mlp((d, 2048, 2048, out or 2048), last_norm="affine"),  # Lee, ImageNet
    "balanced-cifar": lambda d, out: mlp((d, 2048, out or 2048), last_norm="affine"),  # Lee, CIFAR-10
    "moco-v2": lambda d, out: mlp((d, d, out or 128), norm=False, bias=True),
    "moco-v3": lambda d, out: mlp((d, 4096, out or 256), last_norm="plain"),
    "linear": lambda d, out: nn.Linear(d, out or 128),  # Wang & Liu
    "alexnet": lambda d, out: _fc8(d, out or 128),  # CACR
}


def head(name: str, width: int, out: int = 0) -> nn.Module:
    """A projector by name, for features of this width; `out` replaces its own number of dimensions."""
    check_known("head", name, HEADS)
    return HEADS[name](width, out)


def predictor(width: int) -> nn.Module:
    """MoCo v3's: width → 4096 (batch norm, ReLU) → width."""
    return mlp((width, 4096, width))
