"""The device that a command computes on: the one that `--device` selects, else a GPU if there is one, else the CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# A property of the process and not of a `Run`: the same run may start on a GPU and resume on a CPU.
_selected: ContextVar[str] = ContextVar("device", default="")


@dataclass(frozen=True, kw_only=True)
class DeviceOption:
    """The option of commands that compute on a device; `use_device` applies it while the command runs."""

    device: str = ""
    """Device to compute on: cpu, cuda or, on a machine with several GPUs, one of them, such as cuda:1; empty: a GPU if there is
    one, else the CPU."""


@contextmanager
def use_device(name: str) -> Iterator[None]:
    """Make `own_device` return this device within the block; raise ValueError if this machine does not have it."""
    before = _selected.get()
    select_device(name)
    try:
        yield
    finally:
        _selected.set(before)


def select_device(name: str) -> None:
    """Make `own_device` return this device from now on; empty: its own choice."""
    if name:
        _check_device(name)
    _selected.set(name)


def selected_device() -> str:
    """Return the name that `use_device` selected; empty if none is selected."""
    return _selected.get()


def own_device() -> torch.device:
    """Return this process's device; a GPU also becomes the current device."""
    import torch  # here, since commands that compute nothing, such as `contrapose runs`, start faster without it

    device = torch.device(_selected.get() or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda":
        if device.index is None:
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    return device


def _check_device(name: str) -> None:
    """Raise ValueError unless this machine has the device and contrapose can use it."""
    kind, _, number = name.partition(":")
    if name == "mps":
        raise ValueError(
            "device: mps is not supported, because metrics are computed in float64, which Apple's GPUs do not have; "
            "use --device cpu"
        )
    if kind not in ("cpu", "cuda") or (name != kind and not (kind == "cuda" and number.isdecimal())):
        raise ValueError(f"device: expected cpu, cuda or a GPU's number, such as cuda:0, got {name!r}")
    if kind == "cpu":
        return
    import torch

    count = torch.cuda.device_count()
    if not count:
        reason = "this PyTorch is built without CUDA" if torch.version.cuda is None else "PyTorch finds no GPU"
        raise ValueError(f"device: {name} is not available, since {reason}; use --device cpu, or omit --device")
    if number and int(number) >= count:
        raise ValueError(
            f"device: {name} does not exist: there {'is 1 GPU' if count == 1 else f'are {count} GPUs'}, numbered from 0; "
            f"use --device cuda:{count - 1}"
        )
    if number and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError(
            f"device: {name} is one GPU, but torchrun started several processes, each with its own; use --device cuda"
        )
