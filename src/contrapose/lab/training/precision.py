"""Autocast in the precision of a run."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Return the autocast context of a precision: bf16, fp16, or none for fp32."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)


def choose_precision(device: torch.device) -> str:
    """Return bf16 for a GPU that computes in it, else fp32."""
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"


def log_slow_precision(device: torch.device, precision: str, log: Callable[[str], None]) -> None:
    """Log if another precision would be faster on this device."""
    if precision == "fp32" and choose_precision(device) == "bf16":
        log("precision: fp32 computes all products in full precision; --precision bf16 is faster on this GPU")
    if precision == "bf16" and device.type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        warnings.filterwarnings("ignore", message="mkldnn_matmul failed")  # once instead of for every matrix product
        log("precision: this CPU has no bf16 instructions, so bf16 is slower here than --precision fp32")
