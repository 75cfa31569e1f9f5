"""Weights from other libraries, read from files that may be malicious."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor


def convert(source: Path) -> dict[str, Tensor]:
    """Return the tensors of a foreign .pth file. Nothing in the file is executed: torch reads it in its restricted mode.

    Wrappers such as {"state_dict": …} and prefixes such as "module." or "backbone." are removed.
    """
    try:
        content = torch.load(source, map_location="cpu", weights_only=True)
    except Exception as error:  # a malicious or damaged file can raise any exception
        raise ValueError(
            f"import: {source} is not a file of plain tensors ({type(error).__name__}); it was not read"
        ) from error
    for key in ("state_dict", "model", "network"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    tensors = {name: t for name, t in content.items() if isinstance(t, Tensor)} if isinstance(content, dict) else {}
    if not tensors:
        raise ValueError(f"import: {source} holds no named tensors; expected a state_dict")
    # In this order, because wrappers nest: DistributedDataParallel puts "module." before a MoCo model's "encoder_q.".
    for prefix in ("module.", "encoder_q.", "backbone.", "encoder.", "network."):
        if all(name.startswith(prefix) for name in tensors):
            tensors = {name.removeprefix(prefix): t for name, t in tensors.items()}
    return tensors
