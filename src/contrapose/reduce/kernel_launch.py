"""Run a Triton kernel, compiled once for each specialisation and looked up in a cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from contrapose.reduce.hardware import on_device

_COMPILED: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}  # kernels and their constants


def launch_kernel(
    kernel: Any, grid: tuple[int, int, int], arguments: tuple[Any, ...], specialisation: tuple[Any, ...],
    constants: dict[str, Any], *, near: Tensor, warps: int, stages: int,
) -> None:  # fmt: skip
    """Run kernel[grid](…) on the device of `near`."""
    # With our own cache of compiled kernels: for small problems, Triton's look-up takes longer than the kernel. A compiled
    # kernel also takes its constants by position.
    key = (kernel.__name__, near.device, specialisation, *constants.items(), warps, stages)
    compiled, values = _COMPILED.get(key, (None, ()))
    if compiled is not None and near.is_cuda and near.device.index == torch.cuda.current_device():
        compiled[grid](*arguments, *values)
        return
    with on_device(near):
        if compiled is None:
            compiled = kernel[grid](*arguments, **constants, num_warps=warps, num_stages=stages)
            values = tuple(constants[name] for name in kernel.arg_names[len(arguments) :])
            _COMPILED[key] = compiled, values
        else:
            compiled[grid](*arguments, *values)


def specialisation(buffers: tuple[Tensor, ...], sizes: tuple[int, ...]) -> tuple[Any, ...]:
    """Return the properties for which Triton specialises a kernel: types, 16-byte alignment, integers divisible by 16 or 1."""
    return *[(x.dtype, x.data_ptr() % 16 == 0) for x in buffers], *[(x == 1, x % 16 == 0) for x in sizes]
