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
        arguments = tuple(_copied_value(value, shared) for value in criterion.args)
        keywords = {name: _copied_value(value, shared) for name, value in criterion.keywords.items()}
        return partial(copy_of(criterion.func, shared), *arguments, **keywords)
    if isinstance(criterion, types.MethodType):
        return types.MethodType(criterion.__func__, _copied_object(criterion.__self__, shared))
    if isinstance(criterion, types.FunctionType):
        if not criterion.__closure__:
            return criterion
        cells = tuple(types.CellType(_copied_value(value, shared)) for value in _contents(criterion))
        made = types.FunctionType(
            criterion.__code__, criterion.__globals__, criterion.__name__, criterion.__defaults__, cells
        )
        made.__kwdefaults__ = criterion.__kwdefaults__
        return made
    if isinstance(criterion, type | types.BuiltinFunctionType):
        return criterion
    owned: Callable[..., Any] = _copied_object(criterion, shared)
    return owned


def _contents(function: types.FunctionType) -> tuple[Any, ...]:
    try:
        return tuple(cell.cell_contents for cell in function.__closure__ or ())
    except ValueError as error:
        raise CannotAsk("the criterion is a function with a variable that is not set") from error


def _copied_value(value: Any, shared: tuple[Any, ...]) -> Any:
    """Return a value that a criterion may change, such as a module, a queue or a counter in a list, as a copy of its own."""
    if isinstance(value, nn.Module):
        return _copy(value, shared)
    if isinstance(value, torch.Tensor):
        if value.requires_grad:  # trained, or computed from what is trained
            return value
        _check_size(value.nbytes)
        return value.clone()
    if type(value) in (list, tuple):
        return type(value)(_copied_value(inner, shared) for inner in value)
    if type(value) is dict:
        return {name: _copied_value(inner, shared) for name, inner in value.items()}
    return value


def _copied_object(value: Any, shared: tuple[Any, ...]) -> Any:
    """Return a copy of an object with attributes, which are copied as `_copied_value` does."""
    if isinstance(value, nn.Module):
        return _copy(value, shared)
    if not hasattr(value, "__dict__"):
        return value
    try:
        made = copy.copy(value)
        vars(made).update({name: _copied_value(inner, shared) for name, inner in vars(value).items()})
    except CannotAsk:
        raise
    except Exception as error:
        raise CannotAsk(f"the criterion cannot be copied ({type(error).__name__}: {error})") from error
    return made


def _check_size(count: int) -> None:
    if count > MOST_BYTES:
        raise CannotAsk(f"the criterion keeps {count / 2**20:,.0f} MiB of state, which a look does not copy")


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
    _check_size(sum(buffer.nbytes for buffer in owned))
    memo: dict[int, Any] = {id(p): p for p in module.parameters()} | {id(value): value for value in shared}
    try:
        return copy.deepcopy(module, memo)
    except Exception as error:  # locks, process groups, tensors that are no leaves, ...
        raise CannotAsk(f"the criterion cannot be copied ({type(error).__name__}: {error})") from error


def _holds(value: Any, buffer: torch.Tensor) -> bool:
    return isinstance(value, nn.Module) and any(buffer is other for other in value.buffers())
