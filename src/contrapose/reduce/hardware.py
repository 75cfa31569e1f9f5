"""What the device and the precision of embeddings allow."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

_HALF = (torch.float16, torch.bfloat16)


def is_half(*embeddings: Tensor) -> bool:
    """Whether all of them are in half precision."""
    return all(z.dtype in _HALF for z in embeddings)


def on_device(z: Tensor) -> AbstractContextManager[Any]:
    """Inside, kernels are launched where z is."""
    return torch.cuda.device_of(z) if z.is_cuda and z.device.index != torch.cuda.current_device() else nullcontext()


@lru_cache
def has_kernels(device: torch.device) -> bool:
    """Whether Triton can run here, on a chip with bf16 and tf32."""
    if device.type != "cuda" or torch.version.hip is not None or find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)
