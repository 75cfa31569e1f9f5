"""Collectives as operators with derivatives of their own, for compiled code.

The compiler traces a `torch.autograd.Function` and the collectives in it. With torch 2.11, what a collective writes into a tensor
is then lost in the backward pass, and gradients are wrong without an error. It does not look into these operators. What differs
between processes, such as the rank, is read inside them: the compiler would store it in code that all processes share on disk. A
group is given by its name, since operators take no objects; empty: all processes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def name_of(group: Any) -> str:
    """Return the name of a process group; empty for None."""
    return "" if group is None else str(group.group_name)


def _group(name: str) -> Any:
    c10d: Any = dist.distributed_c10d
    return c10d._resolve_process_group(name) if name else None


@torch.library.custom_op("contrapose::sum_over_ranks", mutates_args=())
def sum_over_ranks(x: Tensor, group: str) -> Tensor:
    """Return the sum of `x` over all processes."""
    summed = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(summed, group=_group(group))
    return summed


@torch.library.custom_op("contrapose::gather_rows", mutates_args=())
def gather_rows(z: Tensor, group: str, size: int) -> Tensor:
    """Return the rows (m, …) of all `size` processes, (size·m, …), in rank order."""
    gathered = z.new_empty((size * len(z), *z.shape[1:]))
    dist.all_gather_into_tensor(gathered, z.contiguous(), group=_group(group))
    return gathered


@torch.library.custom_op("contrapose::own_rows_of_sum", mutates_args=())
def own_rows_of_sum(x: Tensor, group: str, rows: int) -> Tensor:
    """Return this process's `rows` of the sum of `x` (size·rows, …) over all processes."""
    # Twice the traffic of a reduce-scatter, which not every backend has.
    start = dist.get_rank(_group(group)) * rows
    summed: Tensor = sum_over_ranks(x, group)
    return summed[start : start + rows].clone()


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.rows, ctx.group = len(inputs[0]), inputs[1]


def _summed(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return sum_over_ranks(gradient, ctx.group), None


def _own_rows(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    return own_rows_of_sum(gradient, ctx.group, ctx.rows), None, None


sum_over_ranks.register_fake(lambda x, group: torch.empty_like(x, memory_format=torch.contiguous_format))
gather_rows.register_fake(lambda z, group, size: z.new_empty((size * len(z), *z.shape[1:])))
own_rows_of_sum.register_fake(lambda x, group, rows: x.new_empty((rows, *x.shape[1:])))
sum_over_ranks.register_autograd(_summed, setup_context=_remember)
gather_rows.register_autograd(_own_rows, setup_context=_remember)
