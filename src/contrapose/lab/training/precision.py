"""Autocast in the precision of a run."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Return the autocast context of a precision: bf16, fp16, or none for fp32."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)


def check_bf16(device: torch.device, precision: str, log: Callable[[str], None]) -> None:
    """Log once that the CPU has no bf16 instructions, instead of torch's warning for every matrix product."""
    if precision == "bf16" and device.type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        warnings.filterwarnings("ignore", message="mkldnn_matmul failed")
        log("precision: this CPU has no bf16 instructions, so bf16 is slower here than --precision fp32")
