"""Encoder weights in and out: safetensors under torchvision's or timm's names."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from contrapose.networks.encoder import Encoder


def export(encoder: Encoder, path: Path) -> None:
    """Write the encoder's weights, without its head, under the names of the library that it comes from."""
    from safetensors.torch import save_file

    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in encoder.network.state_dict().items()}
    save_file(tensors, str(path))


def convert(source: Path) -> dict[str, Tensor]:
    """The tensors of a foreign .pth file, read by torch's restricted reader: nothing in it is executed.

    Wrappers such as {"state_dict": …} and prefixes such as "module." or "backbone." are taken off.
    """
    try:
        found = torch.load(source, map_location="cpu", weights_only=True)
    except Exception as error:  # a hostile or broken file: whatever the reader says, it is not read
        raise ValueError(
            f"import: {source} is not a file of plain tensors ({type(error).__name__}); it was not read"
        ) from error
    for key in ("state_dict", "model", "network"):
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
    tensors = {name: t for name, t in found.items() if isinstance(t, Tensor)} if isinstance(found, dict) else {}
    if not tensors:
        raise ValueError(f"import: {source} holds no named tensors")
    for prefix in ("module.", "encoder_q.", "backbone.", "encoder.", "network."):
        if all(name.startswith(prefix) for name in tensors):
            tensors = {name.removeprefix(prefix): t for name, t in tensors.items()}
    return tensors


def initialise(encoder: Encoder, path: Path) -> None:
    """Start an encoder from exported or imported weights; a classifier's are left out, all others must fit."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        found = load_file(str(path))
    except SafetensorError as error:
        raise ValueError(
            f"init: {path} is not a .safetensors file (`contrapose import {path} -o weights.safetensors` makes one of a .pth)"
        ) from error
    tensors = {n: t for n, t in found.items() if not n.startswith(("fc.", "heads.", "head.", "classifier."))}
    wanted = encoder.network.state_dict()
    missing, extra = sorted(wanted.keys() - tensors.keys()), sorted(tensors.keys() - wanted.keys())
    if missing or extra:
        raise ValueError(
            f"init: {path} does not fit the encoder: missing {missing[:3] or 'nothing'}, not expected {extra[:3] or 'nothing'}"
        )
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            raise ValueError(
                f"init: {name} in {path} has shape {tuple(tensor.shape)}, the encoder {tuple(wanted[name].shape)}; "
                "--encoder has to be the network that the weights are of"
            )
    encoder.network.load_state_dict(tensors)
