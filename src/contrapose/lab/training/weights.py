"""Export and import encoder weights as safetensors, under torchvision's or timm's names; export them for detectron2."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from contrapose.lab.networks.encoder import Encoder
from contrapose.lab.networks.weight_files import write_tensors


def export(encoder: Encoder, path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write the encoder's weights, without the head, under the parameter names of the library that defines the encoder."""
    write_tensors(path, encoder.network.state_dict(), metadata)


# Encoders whose layers have a counterpart in detectron2, whose ResNets have the stem for large images.
DETECTRON2_ENCODERS = ("resnet18", "resnet50", "resnet50-zero")


def export_for_detectron2(encoder: Encoder, path: Path) -> None:
    """Write the weights of a torchvision ResNet as a .pkl file that detectron2 reads as `MODEL.WEIGHTS`.

    The names are those of MoCo's script convert-pretrain-to-detectron2.py.
    """
    arrays = {
        detectron2_name(name): tensor.detach().cpu().numpy() for name, tensor in encoder.network.state_dict().items()
    }
    with path.open("wb") as file:
        # detectron2 reads pickles only. Writing a pickle is harmless; this package never reads one.
        pickle.dump({"model": arrays, "__author__": "contrapose", "matching_heuristics": True}, file)


def detectron2_name(name: str) -> str:
    """Return detectron2's name for a parameter in torchvision's ResNet.

    >>> detectron2_name("layer1.0.downsample.1.weight"), detectron2_name("bn1.bias")
    ('res2.0.shortcut.norm.weight', 'stem.conv1.norm.bias')
    """
    parts = name.split(".")
    if parts[0].startswith("layer"):
        parts[0] = f"res{int(parts[0].removeprefix('layer')) + 1}"
    else:
        parts.insert(0, "stem")
    name = ".".join(parts)
    name = name.replace("downsample.0.", "shortcut.").replace("downsample.1.", "shortcut.norm.")
    return re.sub(r"\bbn(\d)\.", r"conv\1.norm.", name)


def read_metadata(path: Path) -> dict[str, str]:
    """Return the metadata of a .safetensors file; empty if it has none."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise ValueError(f"path: {path} does not exist")
    try:
        with safe_open(str(path), framework="pt") as file:
            return dict(file.metadata() or {})
    except SafetensorError as error:
        raise ValueError(f"path: {path} is not a .safetensors file ({error})") from error


def initialise(encoder: Encoder, path: Path) -> None:
    """Load exported or imported weights into an encoder. A classifier's weights are ignored; all other weights must match."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        content = load_file(str(path))
    except (SafetensorError, KeyError, RuntimeError) as error:
        raise ValueError(
            f"init: {path} is not a .safetensors file; convert a .pth file with `contrapose import {path} -o weights.safetensors`"
        ) from error
    tensors = {n: t for n, t in content.items() if not n.startswith(("fc.", "heads.", "head.", "classifier."))}
    obstacle = difference(encoder.network.state_dict(), tensors)
    if obstacle:
        raise ValueError(
            f"init: {path} does not fit the encoder: {obstacle}; set --encoder to the network that the weights come from"
        )
    encoder.network.load_state_dict(tensors)


def difference(expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> str:
    """Describe how named tensors differ from the expected ones in names, shapes or types; empty if there is no difference."""
    missing, extra = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    if missing or extra:
        return f"missing {', '.join(missing[:3]) or 'nothing'}, unexpected {', '.join(extra[:3]) or 'nothing'}"
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            return f"{name} has the shape {tuple(tensor.shape)} instead of {tuple(expected[name].shape)}"
        # Half-precision weights can be converted; integers cannot be weights.
        if tensor.is_floating_point() != expected[name].is_floating_point():
            return f"{name} has the type {tensor.dtype} instead of {expected[name].dtype}"
    return ""
