"""Gather embeddings from all processes, with exact gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar, cast
from weakref import WeakKeyDictionary
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor

from contrapose import compiled_collectives
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

    >>> gather(torch.eye(2)).shape  # one process
    torch.Size([2, 2])
    """
    if not isinstance(z, Tensor) or not 0 <= dim < z.ndim:
        received = f"shape {tuple(z.shape)}" if isinstance(z, Tensor) else type(z).__name__
        raise ValueError(f"z: expected a tensor with rows along dimension {dim}, got {received}")
    if world_size(group) == 1:
        return z
    if dim:  # the collective concatenates along dimension 0
        return gather(z.transpose(0, dim), group=group).transpose(0, dim)
    check_equal_rows(z, group)
    if not z.requires_grad:
        return _all_gather(z, group)
    refuse_transforms()
    gathered: Tensor
    if torch.compiler.is_compiling():
        gathered = compiled_collectives.gather_rows(z, compiled_collectives.name_of(group), world_size(group))
    else:
        gathered = _Gather.apply(z, group)
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
        return _reduce_scatter(gradients[0], ctx.rows, ctx.group), None


def sum_over_ranks(x: Tensor, group: Group = None) -> Tensor:
    """Return the sum of `x` over all processes, with exact gradients: every process's loss depends on every `x`."""
    summed: Tensor
    if torch.compiler.is_compiling():
        summed = compiled_collectives.sum_over_ranks(x, compiled_collectives.name_of(group))
    else:
        summed = _SumOverRanks.apply(x, group)
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


def average_gradient(x: Tensor, group: Group = None) -> Tensor:
    """Return `x` itself; the backward pass averages its gradient over all processes.

    DistributedDataParallel averages the gradients of a network's parameters. A parameter outside the network, such as a
    learned temperature, needs the same average; otherwise each process would train a different value.
    """
    if world_size(group) == 1:
        return x
    averaged: Tensor = _AverageGradient.apply(x, group)
    return averaged


class _AverageGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        check_backward(*gradients)
        return _all_reduce(gradients[0], ctx.group) / dist.get_world_size(ctx.group), None


def _all_reduce(x: Tensor, group: Group = None) -> Tensor:
    x = x.clone(memory_format=torch.contiguous_format)  # all_reduce works in place, and autograd may still need x
    dist.all_reduce(x, group=group)
    return x


def _all_gather(z: Tensor, group: Group) -> Tensor:
    z = z.detach().contiguous()
    gathered = z.new_empty((dist.get_world_size(group) * len(z), *z.shape[1:]))
    dist.all_gather_into_tensor(gathered, z, group=group)
    return gathered


def _reduce_scatter(x: Tensor, rows: int, group: Group) -> Tensor:
    """Return this process's `rows` rows of the sum of `x` over all processes; half the traffic of the whole sum."""
    summed = x.new_empty((rows, *x.shape[1:]))
    try:
        dist.reduce_scatter_tensor(summed, x.contiguous(), group=group)
    except RuntimeError as error:
        if "gloo" not in str(error).lower():
            raise
        # Older versions of torch have no reduce-scatter in gloo: it refuses before anything is sent.
        start = dist.get_rank(group) * rows
        return _all_reduce(x, group)[start : start + rows]
    return summed


def pass_on(tensors: Sequence[Tensor], group: Group = None) -> Callable[[], list[Tensor]]:
    """Start to send tensors to the next process of a ring and to receive as many from the one before it.

    Return a function that waits for the received tensors. They have the shapes of those sent.
    """
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    following, previous = (r if group is None else dist.get_global_rank(group, r) for r in _neighbours(rank, size))
    # gloo sends from the CPU's memory only.
    staged = dist.get_backend(group) == "gloo"
    sent = [x.cpu() if staged else x for x in (x.contiguous() for x in tensors)]
    received = [torch.empty_like(x) for x in sent]
    operations = []
    for tag, (out, into) in enumerate(zip(sent, received, strict=True)):
        operations.append(dist.P2POp(dist.isend, out, following, group, tag))
        operations.append(dist.P2POp(dist.irecv, into, previous, group, tag))
    requests = dist.batch_isend_irecv(operations)

    def wait() -> list[Tensor]:
        for request in requests:
            request.wait()
        sent.clear()  # kept until here, since a tensor must not be freed while it is sent
        return [x.to(like.device) for x, like in zip(received, tensors, strict=True)]

    return wait


def _neighbours(rank: int, size: int) -> tuple[int, int]:
    return (rank + 1) % size, (rank - 1) % size


# Bytes by which a process says that its number of rows is another one, and bytes for that number
_MARK, _DIGITS = 64, 8


@dataclass
class _RowCounts:
    """The numbers of rows of all tensors of one width that were exchanged for one call, as which number followed which."""

    call: str
    last: int = 0
    following: dict[int, int] = field(default_factory=dict)
    headers: dict[int, Tensor] = field(default_factory=dict)  # on the device, by number of rows

    def expected(self) -> int | None:
        return self.following.get(self.last)

    def add(self, rows: int) -> None:
        self.following[self.last] = rows
        self.last = rows


_SEEN: WeakKeyDictionary[Any, dict[tuple[Any, ...], _RowCounts]] = WeakKeyDictionary()  # by process group


def check_equal_rows(z: Tensor, group: Group = None) -> None:
    """Raise ValueError unless `z` has the same shape on every process: collectives with unequal shapes hang or mix up rows.

    So do different types, and a backward pass in which only some processes take part. These are compared in the first call;
    a process whose type changes alone in a later step is not found.

    Every process expects the number of rows that followed the last one before, so that a loop that gathers two tensors in
    turns has no surprises. A process with another number does not know whether the others have it too: they may be sending
    their rows already. So it first sends a tensor of the expected shape that says so; others that did not expect it read NaN.
    As long as numbers are as expected, nothing is sent and the host does not wait.
    """
    if z.is_cuda and torch.cuda.is_current_stream_capturing():
        return
    counts = _counts_of(z, group)
    expected = counts.expected()
    if expected is None or expected * z.shape[1:].numel() * z.element_size() < _MARK + _DIGITS:
        # Also tensors that are too small to say so, in every step
        _compare_headers(_all_gather(_header(z, counts.call, is_new=True), group), counts.call, group)
    elif expected != len(z):
        _compare(_announce_rows(z, expected, group))
    counts.add(len(z))


def check_equal_calls(z: Tensor, call: str, group: Group = None) -> None:
    """Raise ValueError unless `z`, and what `call` says about the exchanges that follow, are the same on every process.

    Rows that travel from process to process cannot say that they are others than expected. So a few numbers are gathered in
    every call; the host waits for them only in a process that meets its own for the first time.
    """
    if z.is_cuda and torch.cuda.is_current_stream_capturing():
        return
    counts = _counts_of(z, group, call)
    is_new = counts.expected() != len(z)
    if len(z) not in counts.headers:
        counts.headers[len(z)] = _header(z, counts.call, is_new=False)
    header = _header(z, counts.call, is_new=True) if is_new else counts.headers[len(z)]
    headers = _all_gather(header, group)
    if is_new:
        _compare_headers(headers, counts.call, group)
    counts.add(len(z))


def _counts_of(z: Tensor, group: Group, call: str = "") -> _RowCounts:
    by_key = _SEEN.setdefault(group if group is not None else dist.group.WORLD, {})
    needs_grad = z.requires_grad and torch.is_grad_enabled()
    call = f"{z.dtype} with{'' if needs_grad else 'out'} a gradient{call}"
    return by_key.setdefault((z.shape[1:], z.device, call), _RowCounts(call))


def _header(z: Tensor, call: str, *, is_new: bool) -> Tensor:
    """Return whether this call is new to this process, a checksum of it, and the shape of `z`, (1, 10)."""
    # Padded to a fixed length: the shapes themselves may have different numbers of dimensions.
    return torch.tensor([[is_new, crc32(call.encode()), z.ndim, *z.shape, *[-1] * (7 - z.ndim)]], device=z.device)


def _compare_headers(headers: Tensor, call: str, group: Group) -> None:
    """Raise ValueError unless the headers of all processes have the same shape and call."""
    rows = headers.tolist()
    _compare([tuple(shape[:ndim]) for _, _, ndim, *shape in rows])
    if len({checksum for _, checksum, *_ in rows}) > 1:
        calls = ["the same call as before" if not is_new else "" for is_new, *_ in rows]
        if all(is_new for is_new, *_ in rows):
            dist.all_gather_object(calls, call, group=group)
        else:  # processes to which nothing is new do not take part
            calls[dist.get_rank(group)] = call
        raise ValueError(f"z: expected the same call on every process, got [{'; '.join(calls)}] by rank")


def _announce_rows(z: Tensor, expected: int, group: Group) -> list[tuple[int, ...]]:
    """Exchange the numbers of rows in a tensor with the expected ones; return the shapes by rank."""
    sent = z.new_empty((expected, *z.shape[1:]))
    of_bytes = sent.flatten().view(torch.uint8)
    of_bytes.fill_(255)  # NaN in every floating point type
    digits = torch.tensor(list(len(z).to_bytes(_DIGITS, "big")), dtype=torch.uint8)
    of_bytes[_MARK : _MARK + _DIGITS] = digits.to(z.device)
    received = _all_gather(sent, group).unflatten(0, (-1, expected)).flatten(1).view(torch.uint8)
    has_mark = (received[:, :_MARK] == 255).all(1).tolist()
    digits_by_rank = received[:, _MARK : _MARK + _DIGITS].tolist()
    counts = [
        int.from_bytes(bytes(digits), "big") if mark else expected
        for mark, digits in zip(has_mark, digits_by_rank, strict=True)
    ]
    return [(count, *z.shape[1:]) for count in counts]


def _compare(shapes: list[tuple[int, ...]]) -> None:
    if len(set(shapes)) > 1:
        raise ValueError(
            f"z: expected the same shape on every process, got {shapes} by rank "
            f"(set drop_last=True in the data loader to skip a smaller last batch)"
        )
