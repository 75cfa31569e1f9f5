"""Weights from other libraries, read from files that may be malicious."""

from __future__ import annotations

import zipfile
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from contrapose.lab.memory_budget import OverBudget, check_allocation


def convert(source: Path) -> dict[str, Tensor]:
    """Return the tensors of a foreign .pth file. Nothing in the file is executed: torch reads it in its restricted mode.

    Wrappers such as {"state_dict": …} and prefixes such as "module." or "backbone." are removed.

    source   the file, which may be hostile: it is refused if its tensors would take far more memory than its size
    """
    size = source.stat().st_size
    try:
        with suppress(zipfile.BadZipFile), zipfile.ZipFile(source) as members:  # torch's first format is no archive
            unpacked = sum(member.file_size for member in members.infolist())
            check_allocation(unpacked, f"import: the content of {source}", size=size)
        content = torch.load(source, map_location="cpu", weights_only=True)
    except OverBudget:
        raise
    except Exception as error:  # a malicious or damaged file can raise any exception
        raise ValueError(
            f"import: {source} is not a file of plain tensors ({type(error).__name__}); it was not read"
        ) from error
    for key in ("state_dict", "model", "network"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    named = content.items() if isinstance(content, dict) else ()
    tensors = {name: part for name, part in named if isinstance(name, str) and isinstance(part, Tensor)}
    if not tensors:
        raise ValueError(f"import: {source} holds no named tensors; expected a state_dict")
    for name, tensor in tensors.items():
        # Not a name in safetensors, such as half of a surrogate pair
        if name == "__metadata__" or not name.isprintable():
            raise ValueError(f"import: {source}: expected printable names of tensors, got {name[:80]!r}")
        if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
            kind = "meta" if tensor.is_meta else "quantized" if tensor.is_quantized else str(tensor.layout)
            raise ValueError(
                f"import: {source}: {name[:80]!r}: expected a tensor of plain numbers, got a {kind} tensor"
            )
    # Tensors may share memory, and an expanded one repeats it: each becomes a copy.
    needed = sum(tensor.numel() * tensor.itemsize for tensor in tensors.values())
    check_allocation(needed, f"import: the copies of the tensors in {source}", size=size)
    # In this order, because wrappers nest: DistributedDataParallel puts "module." before a MoCo model's "encoder_q.".
    for prefix in ("module.", "encoder_q.", "backbone.", "encoder.", "network."):
        if all(name.startswith(prefix) for name in tensors):
            tensors = {name.removeprefix(prefix): t for name, t in tensors.items()}
    return tensors
