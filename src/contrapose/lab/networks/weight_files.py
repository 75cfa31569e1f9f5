"""Files of weights in the safetensors format."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors from any device to a .safetensors file."""
    from safetensors.torch import save_file

    # Copies that share no memory, because safetensors rejects tied weights (one tensor, several names).
    copies = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    save_file(copies, str(path), metadata=dict(metadata or {}))
    set_default_mode(path)


def set_default_mode(path: Path) -> None:
    """Give a file the permissions of any new file: safetensors creates its files readable by their owner only."""
    umask = os.umask(0)  # the umask can only be read by setting it
    os.umask(umask)
    path.chmod(0o666 & ~umask)
