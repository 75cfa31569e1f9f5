"""Force an engine, a precision or a memory limit on all reductions in a block of code, for tests and measurements."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch

from contrapose.validate import check_choice

PATHS = ("dense", "blocks", "cpu", "fused", "tiled")
PRECISIONS = ("ieee", "tf32x3", "tf32", "bf16")


@dataclass(frozen=True)
class Memory:
    """Limits on the number of similarities."""

    block: int  # in one block
    kept: int  # kept for the backward pass; a larger matrix is recomputed
    rows: int = 1  # minimum number of rows in a block: fewer would not fill a matrix product


# Blocks of float32 take 2 MiB on the CPU, to stay in cache, and 256 MiB on a GPU, where launches are expensive. Up to
# 64 MiB (CPU) and 1 GiB (GPU) are kept.
CPU_MEMORY, GPU_MEMORY = Memory(2**19, 2**24, 64), Memory(2**26, 2**28, 64)
_FORCED_MEMORY = {"dense": Memory(2**62, 2**62), "blocks": Memory(2**22, 0, 64)}


@dataclass(frozen=True)
class Forced:
    """The settings that a context forces; None: chosen automatically."""

    path: str | None = None
    precision: str | None = None
    memory: Memory | None = None


NOTHING = Forced()
_FORCED: ContextVar[Forced] = ContextVar("forced", default=NOTHING)
forced = _FORCED.get


@contextmanager
def path(name: str, *, precision: str | None = None) -> Iterator[None]:
    """Compute all losses in this context on one path; reductions that the path does not support are computed in blocks.

    dense    the whole similarity matrix, kept for the backward pass
    blocks   blocks of rows, recomputed in the backward pass
    cpu      on a CPU, few passes over the matrix of s / τ with τ a number
    fused    Triton kernels for widths up to 256, and the `tiled` kernels for wider embeddings. `precision` of the products:
             "ieee" float32, "tf32x3" (three tf32 products, nearly float32), "tf32" or "bf16"
    tiled    Triton kernels for any width up to 2,048

    By default a GPU uses kernels wherever they apply: in bf16 for half-precision embeddings, in tf32 if torch may use tf32
    for float32 products, and in tf32x3 otherwise. In all other cases the matrix size decides between dense and blocks,
    except that a CPU has its own path for a log-sum-exp with a number as temperature.

    name        one of these paths
    precision   precision of the products in kernels

    >>> from contrapose import nt_xent, two_views
    >>> pairs = two_views(torch.eye(4), torch.eye(4))
    >>> with path("blocks"):
    ...     loss = nt_xent(pairs, temperature=0.5)
    """
    if name == "chunked":
        warnings.warn('path("chunked") is now path("blocks")', DeprecationWarning, stacklevel=3)
        name = "blocks"
    check_choice("path", name, *PATHS)
    if precision is not None:
        check_choice("precision", precision, *PRECISIONS)
    with _force(Forced(name, precision, _FORCED_MEMORY.get(name))):
        yield


@contextmanager
def memory(*, block: int, kept: int) -> Iterator[None]:
    """Limit blocks to `block` similarities (at least one row), and those kept for backward to `kept`."""
    with _force(Forced(memory=Memory(block, kept))):
        yield


@contextmanager
def _force(what: Forced) -> Iterator[None]:
    token = _FORCED.set(what)
    try:
        yield
    finally:
        _FORCED.reset(token)


def memory_limits(device: torch.device) -> Memory:
    """Return the memory limits on a device, in this context."""
    return forced().memory or (CPU_MEMORY if device.type == "cpu" else GPU_MEMORY)
