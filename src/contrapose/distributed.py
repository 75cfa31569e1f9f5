"""Gather embeddings from all processes, with exact gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from contrapose.reduce.derivatives import check_backward, refuse_transforms

T = TypeVar("T")
Group: TypeAlias = "dist.ProcessGroup | None"  # a process group; None for all processes


def world_size(group: Group = None) -> int:
    """Return the number of processes in a group (default: all processes); 1 without torch.distributed."""
    if not (dist.is_available() and dist.is_initialized()):
        return 1
    size = dist.get_world_size(group)
    if size < 1:  # torch returns this in a process that is not in the group
        raise ValueError(f"group: expected a group that this process is in, got one without rank {dist.get_rank()}")
    return size


def gather(z: Tensor, dim: int = 0, *, group: Group = None) -> Tensor:
    """Return the rows from all processes, (W·m, …), in rank order; `z` itself if there is only one process.

    Rows are along `dim`: 0 for (m, d), 1 for views (V, m, d). With `group`, a process group that this process belongs to,
    only rows from the group's members are gathered.

    Each process computes the loss of the whole batch. The backward pass sums these rows' gradients over all processes, and
    DistributedDataParallel's mean over W processes turns that sum into exactly the gradient of single-process training:

        loss = nt_xent(two_views(gather(z1), gather(z2)), temperature=0.5)

    Tensors without gradient, such as ids, can be gathered too. Every process must pass the same number of rows. If groups of
    equal size compute one loss each, DistributedDataParallel's mean over all processes gives the gradient of the mean loss.

    z       this process's rows
    dim     dimension along which the rows are gathered
    group   process group that this process belongs to; default: all processes
    """
    if not isinstance(z, Tensor) or not 0 <= dim < z.ndim:
        received = f"shape {tuple(z.shape)}" if isinstance(z, Tensor) else type(z).__name__
        raise ValueError(f"z: expected a tensor with rows along dimension {dim}, got {received}")
    if world_size(group) == 1:
        return z
    if dim:  # the collective concatenates along dimension 0
        return gather(z.transpose(0, dim), group=group).transpose(0, dim)
    _check_equal_shapes(z, group)
    if not z.requires_grad:
        return _all_gather(z, group)
    refuse_transforms()
    gathered: Tensor = _Gather.apply(z, group)
    return gathered


def share_of_rows(count: int, group: Group = None) -> slice:
    """Return this process's share of `count` rows: equal slices, in rank order."""
    size = world_size(group)
    rows_per_rank, rest = divmod(count, size)
    if rest:
        raise ValueError(
            f"{count} anchors cannot be divided evenly between {size} processes: "
            f"expected the same batch size on every process"
        )
    rank = dist.get_rank(group) if size > 1 else 0
    return slice(rank * rows_per_rank, (rank + 1) * rows_per_rank)


def raise_on_all_ranks(work: Callable[[], T], group: Group = None) -> T:
    """Return `work()`; if it raises ValueError on one process, raise on all, since the others would wait for that one."""
    result, error = None, None
    try:
        result = work()
    except ValueError as raised:
        error = raised
    # The exchange reads a value from the device, which is impossible while a CUDA graph is captured.
    if world_size(group) > 1 and not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
        device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend(group) == "nccl" else "cpu"
        failed = torch.tensor(float(error is not None), device=device)
        dist.all_reduce(failed, group=group)
        if float(failed) and error is None:
            raise ValueError("another process found invalid values in its part of the batch: see its error message")
    if error is not None:
        raise error
    return cast(T, result)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, group: Group) -> Tensor:
        ctx.rows, ctx.group = len(z), group
        return _all_gather(z, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        check_backward(*gradients)
        # Every process's loss depends on these rows, so their gradient is the sum over processes.
        gradient = _all_reduce(gradients[0], ctx.group)
        start = dist.get_rank(ctx.group) * ctx.rows
        return gradient[start : start + ctx.rows], None


def sum_over_ranks(x: Tensor, group: Group = None) -> Tensor:
    """Return the sum of `x` over all processes, with exact gradients: every process's loss depends on every `x`."""
    summed: Tensor = _SumOverRanks.apply(x, group)
    return summed


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return _all_reduce(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        check_backward(*gradients)
        return _all_reduce(gradients[0], ctx.group), None


def average_gradient(x: Tensor) -> Tensor:
    """Return `x` itself; the backward pass averages its gradient over all processes.

    DistributedDataParallel averages the gradients of a network's parameters. A parameter outside the network, such as a
    learned temperature, needs the same average; otherwise each process would train a different value.
    """
    if world_size() == 1:
        return x
    averaged: Tensor = _AverageGradient.apply(x)
    return averaged


class _AverageGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        check_backward(*gradients)
        return _all_reduce(gradients[0]) / dist.get_world_size()


def _all_reduce(x: Tensor, group: Group = None) -> Tensor:
    x = x.clone(memory_format=torch.contiguous_format)  # all_reduce works in place, and autograd may still need x
    dist.all_reduce(x, group=group)
    return x


def _all_gather(z: Tensor, group: Group) -> Tensor:
    z = z.detach().contiguous()
    gathered = z.new_empty((dist.get_world_size(group) * len(z), *z.shape[1:]))
    dist.all_gather_into_tensor(gathered, z, group=group)
    return gathered


def _check_equal_shapes(z: Tensor, group: Group) -> None:
    """Exchange shapes and raise ValueError if they differ: collectives with unequal shapes hang or mix up rows."""
    if z.is_cuda and torch.cuda.is_current_stream_capturing():
        return
    # Padded to a fixed length: the shapes themselves may have different numbers of dimensions.
    shape = torch.tensor([z.ndim, *z.shape, *[-1] * (7 - z.ndim)], device=z.device)
    shapes = shape.new_empty((dist.get_world_size(group), 8))
    dist.all_gather_into_tensor(shapes, shape[None], group=group)
    if not bool((shapes == shape).all()):
        by_rank = [tuple(row[1 : 1 + row[0]]) for row in shapes.tolist()]
        raise ValueError(
            f"z: expected the same shape on every process, got {by_rank} by rank "
            f"(set drop_last=True in the data loader to skip a smaller last batch)"
        )
