"""Checks of input: each raises a ValueError that names the argument, what was expected and what was received."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from contrapose.extras import nearest as nearest  # re-exported next to the checks that use it

_SHAPES = {2: "(m, d)", 3: "(V, m, d)"}


class NotFinite(ValueError):
    """Embeddings, or a loss of them, have values that are not finite, or that their floating point type cannot hold."""


def values_may_be_read(tensor: Tensor) -> bool:
    """Return whether a tensor's values can be read now: not while a graph is traced or captured."""
    if torch.compiler.is_compiling():
        return False
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def check_values(condition: Tensor, message: Callable[[], str]) -> None:
    """Raise ValueError unless every element of `condition` is true (skipped inside captured graphs)."""
    # Reading the result waits for the device, so pass one condition for all values instead of one per value.
    if values_may_be_read(condition) and not bool(condition.all()):
        raise ValueError(message())


def check_embeddings(name: str, z: Tensor, *dims: int, shapes: Mapping[int, str] = _SHAPES) -> None:
    """Check that `z` is a non-empty floating point tensor whose number of dimensions is in `dims`.

    `shapes` maps a number of dimensions to the shape that the message shows.
    """
    if not isinstance(z, Tensor):
        raise ValueError(f"{name}: expected a tensor of embeddings, got {type(z).__name__}")
    if z.ndim not in dims:
        expected = " or ".join(shapes[n] for n in dims)
        raise ValueError(f"{name}: expected embeddings of shape {expected}, got shape {tuple(z.shape)}")
    if not z.is_floating_point():
        raise ValueError(f"{name}: expected floating point embeddings, got {z.dtype}")
    if z.numel() == 0:
        raise ValueError(f"{name}: expected at least one embedding, got shape {tuple(z.shape)}")


def check_same_shape(name: str, z: Tensor, other: str, like: Tensor) -> None:
    """Check that two tensors that describe the same samples have the same shape."""
    if z.shape != like.shape:
        raise ValueError(f"{name}: expected the shape of {other}, {tuple(like.shape)}, got {tuple(z.shape)}")


def check_width(name: str, rows: Tensor, z: Tensor) -> None:
    """Check that `rows` are as wide as the embeddings `z` that they are compared with."""
    if rows.shape[-1] != z.shape[-1]:
        raise ValueError(f"{name}: expected rows of the embeddings' width {z.shape[-1]}, got shape {tuple(rows.shape)}")


def received_integers(name: str, value: Any) -> str:
    """Return, for a message, the shape of a tensor, or the type of another value and how to make a tensor of a list or array."""
    if isinstance(value, Tensor):
        return str(tuple(value.shape))
    kind = type(value).__name__  # compared by name, since NumPy need not be installed
    return kind + (f"; write torch.tensor({name})" if kind in ("list", "tuple", "ndarray") else "")


def check_index(name: str, index: Tensor, length: int, *, of: str = "image") -> None:
    """Check that `index` has shape (length,), with one integer per image (or whatever `of` names)."""
    if not isinstance(index, Tensor) or index.shape != (length,):
        received = received_integers(name, index)
        raise ValueError(f"{name}: expected one integer per {of}, shape ({length},), got {received}")
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
    """Check that `value` is a finite real number, greater than `above`, at least `least` and at most `most`."""
    # bool is a Real in Python, but True is not a temperature. NumPy's numbers are Real too.
    if isinstance(value, bool) or not isinstance(value, Real) or not _is_finite(value):
        raise ValueError(f"{name}: expected a finite number, got {value!r}")
    value = float(value)
    if above is not None and not value > above:
        raise ValueError(f"{name}: expected a number above {above:g}, got {value!r}")
    if least is not None and not value >= least:
        raise ValueError(f"{name}: expected a number of at least {least:g}, got {value!r}")
    if most is not None and not value <= most:
        raise ValueError(f"{name}: expected a number of at most {most:g}, got {value!r}")


def check_count(name: str, value: Any, *, least: int) -> None:
    """Check that `value` is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}: expected a whole number of at least {least}, got {value!r}")


def _is_finite(value: Real) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond the largest float
        return False


def check_output_file(name: str, path: Path) -> None:
    """Check that a file can be written to `path`."""
    if path.is_dir():
        raise ValueError(f"{name}: {path} is a directory; add the name of a file")
    check_directory(name, path.parent)


def check_directory(name: str, path: Path) -> None:
    """Check that files can be written to the directory `path`, or that it can be created."""
    option = f"--{name.replace('_', '-')}"
    if os.path.realpath(path) == os.path.realpath("/"):
        raise ValueError(f"{name}: {path} is the root of the file system; choose a directory below it with {option}")
    existing = next((p for p in (path, *path.parents) if os.path.exists(p)), Path())
    if not existing.is_dir():
        raise ValueError(f"{name}: {existing} is a file, but a directory is needed; choose another {option}")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ValueError(f"{name}: no permission to write to {existing}; choose another {option}")


def check_choice(name: str, value: Any, *allowed: str) -> None:
    """Check that `value` is one of the allowed words."""
    if value not in allowed:
        raise ValueError(f"{name}: expected one of {', '.join(map(repr, allowed))}, got {value!r}")


def check_known(name: str, value: str, known: Collection[str], *, cutoff: float = 0.6) -> None:
    """Check that `value` is one of the known names; the message suggests the most similar one."""
    if value not in known:
        raise ValueError(f"{name}: expected one of {', '.join(known)}, got {value!r}{nearest(value, known, cutoff)}")
