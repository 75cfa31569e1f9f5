"""The papers' image encoders. ResNets and ViTs come from torchvision, so their weights have torchvision's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from contrapose.lab.modalities.images import efficientnet_lite
from contrapose.lab.modalities.images.convolutions import speed_up_backward
from contrapose.lab.networks.encoder import Encoder as AnyEncoder
from contrapose.validate import nearest


class Encoder(AnyEncoder):
    """An encoder of images."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Map images (B, 3, H, W) to features (B, width)."""
        # Convolutions run fastest with channels last on a GPU and, in evaluation, even on a CPU.
        if inputs.is_cuda or not self.training:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        return super().forward(inputs)


class _Residual(nn.Module):
    """A ResNet basic block, with torchvision's names for its layers."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.downsample: nn.Module = nn.Identity()
        if (stride, width) != (1, out):
            self.downsample = nn.Sequential(nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + self.downsample(x))


def tiny(width: int = 16) -> Encoder:
    """Return a network of three residual blocks at half resolution with 64 features, small enough to train on a CPU."""
    network = nn.Sequential(
        nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        _Residual(width, width, 1), _Residual(width, 2 * width, 2), _Residual(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    return Encoder(network, 4 * width)


def small(width: int = 32) -> Encoder:
    """Return a wider `tiny`: three residual blocks with 128 features, for photographs on a CPU."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    layers += [_Residual(width, width, 1)]
    for before, after in ((width, 2 * width), (2 * width, 4 * width)):
        # Pooling before the block replaces a stride in the block: the backward pass of a strided convolution runs at its
        # input's resolution, which would make a step 1.4 times as long.
        layers += [nn.AvgPool2d(2, ceil_mode=True), _Residual(before, after, 1)]
    return Encoder(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), 4 * width)


def _resnet(name: str, width: int, *, cifar: bool, **options: Any) -> Encoder:
    """Return torchvision's ResNet without its classifier; `cifar` replaces its stem by the stem for small images."""
    import torchvision

    network = torchvision.models.get_model(name, weights=None, **options)
    if cifar:  # a 3 × 3 stem of stride 1 without pooling: 32 × 32 images keep their resolution up to the second stage
        network.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        # torchvision initialises its own stem; the new stem needs the same distribution.
        nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
        network.maxpool = nn.Identity()
    network.fc = nn.Identity()
    return Encoder(network, width)


def alexnet(size: int = 32) -> Encoder:
    """Return the small AlexNet of align_uniform and CACR, with fc7's 4,096 features. `size` is 32 or 64."""

    def stage(in_channels: int, out_channels: int, pool: bool) -> list[nn.Module]:
        convolution = nn.Conv2d(in_channels, out_channels, 3, 1, 1, bias=False)
        layers: list[nn.Module] = [convolution, nn.BatchNorm2d(out_channels), nn.ReLU()]
        return [*layers, nn.MaxPool2d(3, 2)] if pool else layers

    side = {32: 3, 64: 7}[size]  # side of the feature map after the last pooling
    dense: list[nn.Module] = []
    for in_features in (192 * side * side, 4096):
        dense += [nn.Linear(in_features, 4096, bias=False), nn.BatchNorm1d(4096), nn.ReLU()]
    network = nn.Sequential(
        *stage(3, 96, True), *stage(96, 192, True), *stage(192, 384, False), *stage(384, 384, False),
        *stage(384, 192, True), nn.Flatten(), *dense,
    )  # fmt: skip
    # The authors' initialisation, instead of torch's default.
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
    return Encoder(network, 4096)


def vit_b16(size: int = 224) -> Encoder:
    """Return torchvision's ViT-B/16 without its classifier, for images of this size, a multiple of 16."""
    import torchvision

    _check_patches("vit-b16", size)
    network = torchvision.models.vit_b_16(weights=None, image_size=size)
    network.heads = nn.Identity()
    return Encoder(network, 768)


def _moco_vit(name: str, size: int, *, width: int) -> Encoder:
    """Return MoCo v3's ViT for images of this size. It also takes local crops whose sizes are other multiples of 16."""
    from contrapose.lab.modalities.images.moco_vit import MoCoVisionTransformer

    _check_patches(name, size)
    return Encoder(MoCoVisionTransformer(size=size, width=width, heads=12), width)


def _check_patches(name: str, size: int, step: int = 16) -> None:
    if size % step:
        nearest_size = max(step, round(size / step) * step)
        raise ValueError(f"size: {name} takes images of a multiple of 16 pixels, got {size} (--size {nearest_size})")


def from_timm(name: str, size: int = 0) -> Encoder:
    """Return a timm model without pretrained weights and without its classifier, for images of this size; 0: its usual size."""
    try:
        timm = _check_timm(name)
    except ImportError as error:
        raise ValueError(f"encoder: timm:{name} needs timm; install it with: pip install timm") from error
    # Only models with positional embeddings or fixed windows have this argument; other models take any size.
    fixed = size and timm.get_pretrained_cfg(name).fixed_input_size
    try:
        network = timm.create_model(name, pretrained=False, num_classes=0, **({"img_size": size} if fixed else {}))
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        if not fixed:
            raise
        raise ValueError(f"size: timm:{name} cannot be built for images of {size} pixels: {error}") from error
    # Some models keep a part of their head (MobileNetV3): `num_features` is the width before it, `head_hidden_size` after it.
    width = getattr(network, "head_hidden_size", None) or network.num_features
    return Encoder(network, int(width))  # type: ignore[arg-type, unused-ignore]


def _check_timm(name: str) -> Any:
    """Return the package timm; raise ValueError if timm has no model with this name."""
    import timm

    if not timm.is_model(name):
        raise ValueError(
            f"encoder: timm has no model {name!r}{nearest(name, timm.list_models())} "
            "(python -c 'import timm; print(timm.list_models())' lists all)"
        )
    return timm


NETWORKS: Mapping[str, Callable[..., Encoder]] = {
    "tiny": tiny,
    "small": small,
    "resnet18-cifar": lambda: _resnet("resnet18", 512, cifar=True),
    "resnet50-cifar": lambda: _resnet("resnet50", 2048, cifar=True),
    "resnet18": lambda: _resnet("resnet18", 512, cifar=False),
    "resnet50": lambda: _resnet("resnet50", 2048, cifar=False),
    # Lee, MoCo v3: the last batch norm in each block starts at zero, so that blocks start as identities.
    "resnet50-zero": lambda: _resnet("resnet50", 2048, cifar=False, zero_init_residual=True),
    "alexnet": alexnet,
    "alexnet-64": lambda: alexnet(64),
    "vit-b16": vit_b16,
    # MoCo v3: fixed positions, fixed patch projection, and its initial weights
    "vit-b16-moco": lambda size=224: _moco_vit("vit-b16-moco", size, width=768),
    "vit-s16-moco": lambda size=224: _moco_vit("vit-s16-moco", size, width=384),
    # Training starts from weights in an installed package; see `load_installed_weights`
    efficientnet_lite.NAME: lambda: from_timm(efficientnet_lite.TIMM_NAME),
}


_BUILT_FOR_SIZE = ("vit-b16", "vit-b16-moco", "vit-s16-moco")
# Networks with padded convolutions and a mean over all positions.
_TAKE_ANY_SIZE = ("tiny", "small", "resnet18-cifar", "resnet50-cifar", "resnet18", "resnet50", "resnet50-zero")


def check_encoder(name: str) -> None:
    """Raise ValueError if no encoder has this name. If timm is not installed, timm's names are not checked."""
    if name.startswith("timm:"):
        with suppress(ImportError):
            _check_timm(name.removeprefix("timm:"))
    elif name not in NETWORKS:
        raise ValueError(
            f"encoder: expected one of {', '.join(NETWORKS)} or timm:NAME, got {name!r}{nearest(name, NETWORKS)}"
        )


def encoder(name: str, size: int = 0) -> Encoder:
    """Return an encoder by its name in `NETWORKS`, or by timm:NAME if timm is installed.

    A vision transformer is built for images of this `size`; 0: its usual size.

    >>> encoder("tiny").width
    64
    """
    check_encoder(name)
    if name.startswith("timm:"):
        body = from_timm(name.removeprefix("timm:"), size)
    else:
        body = NETWORKS[name](size) if size and name in _BUILT_FOR_SIZE else NETWORKS[name]()
    speed_up_backward(body)
    return body


def has_installed_weights(name: str) -> bool:
    """Return whether the encoder's initial weights come from a Python package."""
    return name == efficientnet_lite.NAME


def check_installed_weights(name: str) -> None:
    """Raise ValueError if the encoder's pretrained weights come from a Python package that is not installed."""
    if has_installed_weights(name):
        efficientnet_lite.weights_file()


def load_installed_weights(name: str, built: AnyEncoder) -> None:
    """Load pretrained weights if they come from a Python package; other encoders keep their random weights."""
    if has_installed_weights(name):
        efficientnet_lite.load_installed_weights(built.network)


def check_sizes(name: str, sizes: Sequence[int]) -> None:
    """Raise ValueError if the encoder cannot take images of one of these sizes; the message names sizes that it can take."""
    if name in _TAKE_ANY_SIZE:
        return
    # On the meta device only shapes are computed. It makes torch import its compiler, which takes seconds.
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        built = encoder(name, sizes[0])
    refused = next((size for size in sizes if not _takes(built, size)), None)
    accepted = [size for size in _COMMON_SIZES if _takes(built, size)] if refused else []
    # A model that refuses all sizes may need real tensors; an unsuitable size then fails in the first step.
    if refused and sizes[0] in accepted:
        only, other_size = (" only", "") if len(accepted) == 1 else ("", "another --size ")
        raise ValueError(
            f"views: {name} takes images of {sizes[0]} pixels{only}, and not local crops of {refused}; "
            f"use --views without +local, {other_size}or another --encoder"
        )
    if refused and accepted:
        raise ValueError(
            f"size: {name} takes images of {', '.join(map(str, accepted))} pixels, but these views have {refused}; "
            f"use --size {min(accepted, key=lambda size: abs(size - refused))} or another --encoder"
        )


_COMMON_SIZES = (32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256, 288, 320, 384, 448, 512)


def _takes(built: Encoder, size: int) -> bool:
    """Return whether an encoder on the meta device accepts images of this size."""
    try:
        with torch.no_grad():
            built(torch.zeros(2, 3, size, size, device="meta"))
    except (AssertionError, RuntimeError, ValueError):
        return False
    return True
