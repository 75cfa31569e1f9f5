"""Embeddings of all processes, with exact gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


def world_size() -> int:
    """Return the number of processes; 1 without torch.distributed."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def gather(z: Tensor, dim: int = 0) -> Tensor:
    """The rows of all processes, (W·m, …) in the order of ranks; `z` itself where there is one process.

    Rows are counted along `dim`: 0 for (m, d), 1 for the views (V, m, d) of `views`.

    Each process computes the whole loss. The backward pass sums every process's gradient for these rows, which
    DistributedDataParallel's mean over W processes turns into exactly the one-process gradient:

        loss = nt_xent(two_views(gather(z1), gather(z2)), temperature=0.5)

    Integer tensors (ids) are gathered as they are. Every process must give the same number of rows.
    """
    if not isinstance(z, Tensor) or not 0 <= dim < z.ndim:
        came = f"shape {tuple(z.shape)}" if isinstance(z, Tensor) else type(z).__name__
        raise ValueError(f"z: expected a tensor with rows along dimension {dim}, got {came}")
    if world_size() == 1:
        return z
    if dim:
        return gather(z.transpose(0, dim)).transpose(0, dim)
    _check_equal_shapes(z)
    if not z.requires_grad:
        return _all_gather(z)
    gathered: Tensor = _Gather.apply(z)
    return gathered


def share_of_rows(count: int) -> slice:
    """Which of `count` rows this process reduces where the work is shared out: equal parts, in the order of ranks."""
    each, rest = divmod(count, world_size())
    if rest:
        raise ValueError(f"{count} anchors cannot be shared out evenly between {world_size()} processes")
    own = dist.get_rank() if world_size() > 1 else 0
    return slice(own * each, (own + 1) * each)


def together(work: Callable[[], T]) -> T:
    """What `work` gives; a ValueError on one process is one on all of them, which would wait for it otherwise."""
    found, error = None, None
    try:
        found = work()
    except ValueError as raised:
        error = raised
    if world_size() > 1 and not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
        device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else "cpu"
        failed = torch.tensor(float(error is not None), device=device)
        dist.all_reduce(failed)
        if float(failed) and error is None:
            raise ValueError("another process found a fault in its part of the batch; its message says which")
    if error is not None:
        raise error
    return cast(T, found)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.rows = len(z)
        return _all_gather(z)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        gradient = _summed(gradients[0])
        start = dist.get_rank() * ctx.rows
        return gradient[start : start + ctx.rows]


def total(x: Tensor) -> Tensor:
    """The sum of every process's `x`, with exact gradients: each process's part counts in all of them."""
    summed: Tensor = _Total.apply(x)
    return summed


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _summed(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _summed(gradients[0])


def _summed(x: Tensor) -> Tensor:
    x = x.clone(memory_format=torch.contiguous_format)  # autograd may hold the given one elsewhere
    dist.all_reduce(x)
    return x


def _all_gather(z: Tensor) -> Tensor:
    z = z.detach().contiguous()
    gathered = z.new_empty((dist.get_world_size() * len(z), *z.shape[1:]))
    dist.all_gather_into_tensor(gathered, z)
    return gathered


def _check_equal_shapes(z: Tensor) -> None:
    """Collectives of unequal shape hang or mix rows; a small exchange of shapes says so instead."""
    if z.is_cuda and torch.cuda.is_current_stream_capturing():
        return
    shape = torch.tensor([z.ndim, *z.shape, *[-1] * (7 - z.ndim)], device=z.device)
    shapes = shape.new_empty((dist.get_world_size(), 8))
    dist.all_gather_into_tensor(shapes, shape[None])
    if not bool((shapes == shape).all()):
        each = [tuple(row[1 : 1 + row[0]]) for row in shapes.tolist()]
        raise ValueError(f"z: expected the same shape on every process, got {each} (drop the last, smaller batch)")
