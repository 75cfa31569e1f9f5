"""Checks of device and precision that decide between kernels and plain torch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor


def installed_triton() -> str:
    """Return the version of Triton; empty if it is not installed."""
    if find_spec("triton") is None:
        return ""
    for name in ("triton", "pytorch-triton"):  # the second with nightly builds of PyTorch
        with suppress(PackageNotFoundError):
            return version(name)
    return "4.0"  # built from source


OLDEST_TRITON = (3, 6)  # with which the kernels are tested
# Looked up on import, because torch.compile would trace the call.
_TRITON = installed_triton()
_HALF = (torch.float16, torch.bfloat16)


def is_half(*embeddings: Tensor) -> bool:
    """Return whether all embeddings are in half precision (float16 or bfloat16)."""
    return all(z.dtype in _HALF for z in embeddings)


@contextmanager
def unchanged_onednn() -> Iterator[None]:
    """Leave oneDNN as it was before this block.

    When a CPU cannot compute a bf16 product, torch disables oneDNN for the rest of the process. Convolutions then take longer,
    and round differently.
    """
    enabled, *_ = torch.backends.mkldnn.set_flags(None, None, None, None)  # changes nothing
    try:
        yield
    finally:
        torch.backends.mkldnn.set_flags(enabled, None, None, None)


def on_device(z: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which Triton launches kernels on the device of z."""
    # Triton launches on the current device. Entering a context takes time, so it is skipped where nothing would change.
    return torch.cuda.device_of(z) if z.is_cuda and z.device.index != torch.cuda.current_device() else nullcontext()


@lru_cache
def has_kernels(device: torch.device) -> bool:
    """Return whether Triton can run on this device, and the device has bf16 and tf32 products (Ampere or later)."""
    if device.type != "cuda" or torch.version.hip is not None or not _TRITON:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0) and is_recent_triton(_TRITON)


def is_recent_triton(installed: str) -> bool:
    """Return whether the kernels compile with this version of Triton; warn if they do not."""
    if tuple(int(part) for part in installed.split(".")[:2]) >= OLDEST_TRITON:
        return True
    oldest = ".".join(map(str, OLDEST_TRITON))
    warnings.warn(
        f"losses run without kernels, since Triton {installed} is older than {oldest}; PyTorch 2.11 brings it",
        stacklevel=2,
    )
    return False
