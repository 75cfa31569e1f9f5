"""What bad input gets: a ValueError that names the argument, what came and what was wanted."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from difflib import get_close_matches
from numbers import Real
from typing import Any

import torch
from torch import Tensor


def values_may_be_read(tensor: Tensor) -> bool:
    """Whether looking at a tensor's values is possible now: not while a graph is traced or captured."""
    if torch.compiler.is_compiling():
        return False
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def check_values(condition: Tensor, message: Callable[[], str]) -> None:
    """Raise ValueError unless every element of `condition` is true (skipped inside captured graphs)."""
    if values_may_be_read(condition) and not bool(condition.all()):
        raise ValueError(message())


def check_embeddings(name: str, z: Tensor, *dims: int) -> None:
    """`z` must be a floating point tensor with one of the given numbers of dimensions, none of them empty."""
    if not isinstance(z, Tensor):
        raise ValueError(f"{name}: expected a tensor of embeddings, got {type(z).__name__}")
    if z.ndim not in dims:
        wanted = " or ".join({2: "(m, d)", 3: "(V, m, d)"}[n] for n in dims)
        raise ValueError(f"{name}: expected embeddings of shape {wanted}, got shape {tuple(z.shape)}")
    if not z.is_floating_point():
        raise ValueError(f"{name}: expected floating point embeddings, got {z.dtype}")
    if z.numel() == 0:
        raise ValueError(f"{name}: expected at least one embedding, got shape {tuple(z.shape)}")


def check_same_shape(name: str, z: Tensor, other: str, like: Tensor) -> None:
    """Two tensors that describe the same images must have the same shape."""
    if z.shape != like.shape:
        raise ValueError(f"{name}: expected the shape of {other}, {tuple(like.shape)}, got {tuple(z.shape)}")


def check_index(name: str, index: Tensor, length: int) -> None:
    """One integer per image."""
    if not isinstance(index, Tensor) or index.shape != (length,):
        came = tuple(index.shape) if isinstance(index, Tensor) else type(index).__name__
        raise ValueError(f"{name}: expected one integer per image, shape ({length},), got {came}")
    if index.is_floating_point() or index.dtype in (torch.bool, torch.complex64, torch.complex128):
        raise ValueError(f"{name}: expected integers, got {index.dtype}")


def check_number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
) -> None:
    """A finite real number inside the given range."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(f"{name}: expected a finite number, got {value!r}")
    value = float(value)
    if above is not None and not value > above:
        raise ValueError(f"{name}: expected a number above {above:g}, got {value!r}")
    if least is not None and not value >= least:
        raise ValueError(f"{name}: expected a number of at least {least:g}, got {value!r}")
    if most is not None and not value <= most:
        raise ValueError(f"{name}: expected a number of at most {most:g}, got {value!r}")


def check_choice(name: str, value: Any, *allowed: str) -> None:
    """One word out of a few."""
    if value not in allowed:
        raise ValueError(f"{name}: expected one of {', '.join(map(repr, allowed))}, got {value!r}")


def check_known(name: str, value: str, known: Collection[str], *, cutoff: float = 0.6) -> None:
    """One name out of a list, with a hint where it is nearly one of them."""
    if value not in known:
        raise ValueError(f"{name}: expected one of {', '.join(known)}, got {value!r}{nearest(value, known, cutoff)}")


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """A hint, `; did you mean 'x'?`, at the known name most like this one; nothing where none is like it."""
    near = get_close_matches(name, known, n=1, cutoff=cutoff)
    return f"; did you mean {near[0]!r}?" if near else ""
