"""Encoders by name: images in, features out. `encoder(name).width` is the number of features."""

from __future__ import annotations

from contrapose.encoders.convolutions import speed_up_backward
from contrapose.encoders.networks import NETWORKS, Encoder, from_timm
from contrapose.validate import nearest

__all__ = ["NETWORKS", "Encoder", "encoder"]


def encoder(name: str) -> Encoder:
    """tiny, resnet18-cifar, resnet50-cifar, resnet50, alexnet, vit-b16, or timm:NAME where timm is installed.

    >>> encoder("tiny").width
    64
    """
    if name.startswith("timm:"):
        body = from_timm(name.removeprefix("timm:"))
    elif name in NETWORKS:
        body = NETWORKS[name]()
    else:
        hint = nearest(name, NETWORKS)
        raise ValueError(f"encoder: expected one of {', '.join(NETWORKS)} or timm:NAME, got {name!r}{hint}")
    speed_up_backward(body)
    return body
