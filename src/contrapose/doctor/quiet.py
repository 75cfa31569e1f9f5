"""Call a criterion without a trace: its buffers, its attributes, gradients and random numbers stay as they are."""

from __future__ import annotations

import copy
import random
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

MOST_BYTES = 2**28  # buffers of a criterion that are copied in a look; a larger queue is left alone


class CannotAsk(RuntimeError):
    """Raised if a criterion cannot be called in a look; the message says why."""


@contextmanager
def undisturbed(device: torch.device) -> Iterator[None]:
    """Restore all random generators, enable gradients, and ignore warnings."""
    numpy_random = getattr(sys.modules.get("numpy"), "random", None)
    numpy_state = None if numpy_random is None else numpy_random.get_state()
    python_state = random.getstate()
    devices = [device] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices), torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a criterion that warns would warn about the look, not about training
            yield
    finally:
        random.setstate(python_state)
        if numpy_random is not None:
            numpy_random.set_state(numpy_state)


def copy_of(criterion: Callable[..., Any], shared: tuple[Any, ...] = ()) -> Callable[..., Any]:
    """Return a criterion that computes the same, but whose state is its own; parameters, and `shared` objects, are shared."""
    if isinstance(criterion, nn.Module):
        # Hooks, including the doctor's own, belong to training: forward does not run those of the module itself.
        function: Callable[..., Any] = _copy(_unwrapped(criterion), shared).forward
        return function
    if isinstance(criterion, partial):
        return partial(
            copy_of(criterion.func, shared), *_states(criterion.args, shared), **_states_by_name(criterion, shared)
        )
    if isinstance(criterion, types.MethodType):
        owner = criterion.__self__
        return types.MethodType(criterion.__func__, _copy(owner, shared) if isinstance(owner, nn.Module) else owner)
    if isinstance(criterion, types.FunctionType) and criterion.__closure__:
        cells = tuple(types.CellType(value) for value in _states(_contents(criterion), shared))
        made = types.FunctionType(
            criterion.__code__, criterion.__globals__, criterion.__name__, criterion.__defaults__, cells
        )
        made.__kwdefaults__ = criterion.__kwdefaults__
        return made
    return criterion


def _contents(function: types.FunctionType) -> tuple[Any, ...]:
    try:
        return tuple(cell.cell_contents for cell in function.__closure__ or ())
    except ValueError as error:
        raise CannotAsk("the criterion is a function with a variable that is not set") from error


def _states(values: tuple[Any, ...], shared: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(_copy(value, shared) if isinstance(value, nn.Module) else value for value in values)


def _states_by_name(criterion: partial[Any], shared: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(criterion.keywords, _states(tuple(criterion.keywords.values()), shared), strict=True))


def _unwrapped(module: nn.Module) -> nn.Module:
    """Return the module inside `torch.compile` or DistributedDataParallel: another batch size would compile it again."""
    if isinstance(getattr(module, "_orig_mod", None), nn.Module):
        return _unwrapped(module._orig_mod)  # type: ignore[arg-type]
    if isinstance(module, nn.parallel.DistributedDataParallel):
        return _unwrapped(module.module)
    return module


def _copy(module: nn.Module, shared: tuple[Any, ...]) -> nn.Module:
    """Return a copy with the same parameters and buffers of its own."""
    owned = [buffer for buffer in module.buffers() if all(not _holds(other, buffer) for other in shared)]
    size = sum(buffer.nbytes for buffer in owned)
    if size > MOST_BYTES:
        raise CannotAsk(f"the criterion keeps {size / 2**20:,.0f} MiB of state, which a look does not copy")
    memo: dict[int, Any] = {id(p): p for p in module.parameters()} | {id(value): value for value in shared}
    try:
        return copy.deepcopy(module, memo)
    except Exception as error:  # locks, process groups, tensors that are no leaves, ...
        raise CannotAsk(f"the criterion cannot be copied ({type(error).__name__}: {error})") from error


def _holds(value: Any, buffer: torch.Tensor) -> bool:
    return isinstance(value, nn.Module) and any(buffer is other for other in value.buffers())
