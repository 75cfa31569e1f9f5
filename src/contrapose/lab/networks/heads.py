"""Projectors and predictors, which map features to the embeddings that a loss compares."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

from torch import nn

from contrapose.validate import check_known


def mlp(
    widths: tuple[int, ...],
    *,
    norm: bool = True,
    last_norm: str = "none",
    bias: str = "none",
    activation: Callable[[], nn.Module] = nn.ReLU,
) -> nn.Sequential:
    """Return linear layers, all but the last followed by batch norm (with `norm`) and an activation.

    last_norm: "none", "affine" (batch norm after the last layer too) or "plain" (batch norm without scale and shift).
    bias: which layers have a bias: "none", "last" (as in lightly, where a batch norm makes the other biases redundant) or "all".
    """
    layers: list[nn.Module] = []
    for i, (width_in, width_out) in enumerate(itertools.pairwise(widths)):
        is_last = i == len(widths) - 2
        layers.append(nn.Linear(width_in, width_out, bias=bias == "all" or (bias == "last" and is_last)))
        if not is_last:
            layers += [nn.BatchNorm1d(width_out), activation()] if norm else [activation()]
        elif last_norm != "none":
            # No activation here: embeddings need both signs.
            layers.append(nn.BatchNorm1d(width_out, affine=last_norm == "affine"))
    return nn.Sequential(*layers)


def _fc8(width: int, out: int) -> nn.Linear:
    """Return the last layer of the small AlexNet, initialised like its other layers."""
    layer = nn.Linear(width, out)
    nn.init.normal_(layer.weight, std=0.02)
    nn.init.zeros_(layer.bias)
    return layer


def _dino(widths: tuple[int, ...]) -> nn.Sequential:
    """Return DINO's projector up to the bottleneck, initialised as the authors do: no batch norm, small weights."""
    layers = mlp(widths, norm=False, bias="all", activation=nn.GELU)
    for layer in layers:
        if isinstance(layer, nn.Linear):
            nn.init.trunc_normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)
    return layers


# (number of features, embedding dimension or 0 for the paper's) -> projector
HEADS: Mapping[str, Callable[[int, int], nn.Module]] = {
    "simclr": lambda d, out: mlp((d, d, out or 128), last_norm="affine"),  # DySTreSS (lightly)
    "hcl": lambda d, out: mlp((d, 512, out or 128), bias="all"),  # Robinson et al.; CACR with ResNet-50
    "balanced": lambda d, out: mlp((d, 2048, 2048, out or 2048), last_norm="affine"),  # Lee, ImageNet
    "balanced-cifar": lambda d, out: mlp((d, 2048, out or 2048), last_norm="affine"),  # Lee, CIFAR-10
    "moco-v2": lambda d, out: mlp((d, d, out or 128), norm=False, bias="all"),
    "moco-v3": lambda d, out: mlp((d, 4096, out or 256), last_norm="plain"),
    "moco-v3-vit": lambda d, out: mlp((d, 4096, 4096, out or 256), last_norm="plain"),
    "linear": lambda d, out: nn.Linear(d, out or 128),  # Wang & Liu
    "alexnet": lambda d, out: _fc8(d, out or 128),  # CACR
    "simcse": lambda d, out: nn.Sequential(nn.Linear(d, out or d), nn.Tanh()),  # like all heads, used in training only
    "clip": lambda d, out: nn.Linear(d, out or 512, bias=False),  # for both towers
    "none": lambda d, out: nn.Linear(d, out) if out else nn.Identity(),  # the loss sees the encoder's output
    # Methods from other papers. Names with -cifar are projectors from lightly's benchmark on CIFAR-10.
    "simclr-v2": lambda d, out: mlp((d, d, d, out or 128), last_norm="affine"),
    "byol": lambda d, out: mlp((d, 4096, out or 256), bias="last"),
    "byol-cifar": lambda d, out: mlp((d, 1024, out or 256), bias="last"),
    "simsiam": lambda d, out: mlp((d, 2048, 2048, out or 2048), last_norm="plain"),
    "simsiam-cifar": lambda d, out: mlp((d, 2048, out or 2048), last_norm="affine"),
    "nnclr": lambda d, out: mlp((d, 2048, 2048, out or 256), last_norm="affine"),
    "nnclr-cifar": lambda d, out: mlp((d, 2048, out or 256), last_norm="affine"),
    "barlow-twins": lambda d, out: mlp((d, 8192, 8192, out or 8192), bias="last"),
    "barlow-twins-cifar": lambda d, out: mlp((d, 2048, out or 2048), bias="last"),
    "vicreg": lambda d, out: mlp((d, 8192, 8192, out or 8192), bias="last"),
    "vicreg-lightly": lambda d, out: mlp((d, 8192, out or 8192), bias="last"),
    "w-mse": lambda d, out: mlp((d, 1024, out or 64), bias="all"),
    "zero-cl": lambda d, out: mlp((d, 2048, 2048, out or 2048)),  # Zero-CL and ARB
    "swav": lambda d, out: mlp((d, 2048, out or 128), bias="last"),
    "swav-cifar": lambda d, out: mlp((d, 512, out or 128), bias="last"),
    # The projector ends at the bottleneck: the framework normalises its output and compares it with the prototypes.
    "dino": lambda d, out: _dino((d, 2048, 2048, out or 256)),
    "dino-cifar": lambda d, out: mlp((d, 2048, out or 256), bias="last", activation=nn.GELU),
}


def head(name: str, width: int, out: int = 0) -> nn.Module:
    """Return a projector by name for `width` features; `out` overrides the paper's embedding dimension."""
    check_known("head", name, HEADS)
    return HEADS[name](width, out)


def predictor(width: int, hidden: int = 4096, *, last_norm: bool = False, bias: bool = False) -> nn.Module:
    """Return a predictor: width → hidden (batch norm, ReLU) → width.

    last_norm   whether to end with a batch norm without scale and shift, as MoCo v3 does for a ViT
    bias        whether the last layer has a bias, as in BYOL, SimSiam and NNCLR; the first layer needs none before its norm
    """
    return mlp((width, hidden, width), last_norm="plain" if last_norm else "none", bias="last" if bias else "none")
