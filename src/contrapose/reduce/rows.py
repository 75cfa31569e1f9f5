"""The reduction itself, and its derivative."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from contrapose.reduce.block import Block, Selection, Source
from contrapose.reduce.hardware import has_kernels
from contrapose.reduce.logit import Divided
from contrapose.reduce.means import means
from contrapose.reduce.statistics import Statistic
from contrapose.reduce.unit import matmul, refuse_second_derivative, same_tensor
from contrapose.validate import check_choice


@dataclass(frozen=True)
class Memory:
    """How many similarities may be in flight at once, and how many may be kept for the backward pass."""

    block: int
    kept: int
    rows: int = 1  # in a block, at least: fewer would not fill a matrix product


# In float32, in flight: 2 MiB on the CPU, which stays in cache, and 256 MiB where launches cost; kept: 64 MiB, 1 GiB.
_CPU, _DEVICE = Memory(2**19, 2**24, 64), Memory(2**26, 2**28, 64)
_DENSE = Memory(2**62, 2**62)
_SMALL = {False: 2**18, True: 2**20}  # similarities, on the CPU and on a GPU
_MEMORY: ContextVar[Memory | None] = ContextVar("memory", default=None)
PATHS = ("dense", "chunked", "fused")
PRECISIONS = ("ieee", "tf32x3", "tf32", "bf16")


@dataclass(frozen=True)
class _Forced:
    path: str | None = None
    precision: str | None = None


_FREE = _Forced()
_FORCED: ContextVar[_Forced | None] = ContextVar("forced", default=None)


@contextmanager
def path(name: str, *, precision: str | None = None) -> Iterator[None]:
    """Inside, reductions take one path: "dense" (the whole matrix, kept), "chunked" (blocks, recomputed) or "fused".

    "fused": Triton kernels, with products in "ieee" float32, "tf32x3" (three tf32 products, nearly float32), "tf32" or "bf16";
    what kernels cannot do is done in blocks. Outside, on a GPU kernels do what they can, in bf16 for embeddings that came in
    half precision, in tf32 where torch may use that for float32, otherwise in tf32x3; elsewhere sizes decide between the others.
    """
    check_choice("path", name, *PATHS)
    if precision is not None:
        check_choice("precision", precision, *PRECISIONS)
    limits = {"dense": _DENSE, "chunked": Memory(2**22, 0, 64), "fused": None}
    memory_token, forced_token = _MEMORY.set(limits[name]), _FORCED.set(_Forced(name, precision))
    try:
        yield
    finally:
        _MEMORY.reset(memory_token)
        _FORCED.reset(forced_token)


@contextmanager
def memory(*, block: int, kept: int) -> Iterator[None]:
    """Inside, a block holds at most `block` similarities (one row at least) and at most `kept` are kept."""
    token = _MEMORY.set(Memory(block, kept))
    try:
        yield
    finally:
        _MEMORY.reset(token)


def reduce_rows(source: Source, *statistics: Statistic) -> tuple[Tensor, ...]:
    """Each statistic of each anchor's negatives, (n,) tensors that carry gradients (first derivatives).

    Inside `torch.compile` this part runs as it is: blocks and kernels are made for what they do already.
    """
    if torch.compiler.is_compiling():
        found: tuple[Tensor, ...] = torch.compiler.disable(_reduce_rows)(source, *statistics)
        return found
    return _reduce_rows(source, *statistics)


def _reduce_rows(source: Source, *statistics: Statistic) -> tuple[Tensor, ...]:
    anchor, pool, selection = source.anchor, source.pool, source.selection
    # Given similarities, temperatures with parameters of their own and, where no kernel does it all in one, matrices so small
    # that it is the number of operations that counts are left to autograd as they are.
    if anchor is None or pool is None:
        return _by_autograd(source, statistics)
    small = selection is not None and _small(anchor, pool)
    if selection is not None and not (small and not anchor.is_cuda):
        found = _without_rows(source, anchor, pool, selection, statistics)
        if found is not None:
            return found
    if small or _opaque(statistics, anchor, pool):
        return _by_autograd(source, statistics)
    plan = _Plan(source, statistics, anchor.device)
    values: tuple[Tensor, ...] = _Rows.apply(plan, anchor, pool, *plan.factors)
    return values


def _by_autograd(source: Source, statistics: tuple[Statistic, ...]) -> tuple[Tensor, ...]:
    parts = [[s(block) for s in statistics] for block in _whole(source)]
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))


def _without_rows(
    source: Source, anchor: Tensor, pool: Tensor, selection: Selection, statistics: tuple[Statistic, ...]
) -> tuple[Tensor, ...] | None:
    """What needs no blocks: means, and what kernels can do where there is a device for them."""
    forced = _FORCED.get() or _FREE
    if forced.path is None:
        if _MEMORY.get() is not None:
            return None
        found = means(anchor, pool, selection, statistics)
        if found is not None or not has_kernels(anchor.device):
            return found
    elif forced.path != "fused":
        return None
    precision = forced.precision or _precision(source.half_precision)
    if forced.path is None and not _has_room(anchor.device, precision):
        return None
    from contrapose.reduce import fused  # needs Triton

    return fused.reduce(anchor, pool, selection, statistics, precision, source.bf16_anchor)


def _has_room(device: torch.device, precision: str) -> bool:
    """Whether tiles of float32 fit on the chip: they do from Hopper on, where it is a data centre's."""
    return precision == "bf16" or torch.cuda.get_device_properties(device).shared_memory_per_block_optin >= 220 * 1024


def _precision(half: bool) -> str:
    if half:
        return "bf16"
    try:
        exact = torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # set through the newer switch, which the older one does not speak of
        exact = torch.backends.cuda.matmul.fp32_precision != "tf32"
    return "tf32x3" if exact else "tf32"


def _small(anchor: Tensor, pool: Tensor) -> bool:
    return len(anchor) * len(pool) <= _SMALL[anchor.is_cuda] and _MEMORY.get() is None and _FORCED.get() is None


def _opaque(statistics: tuple[Statistic, ...], anchor: Tensor, pool: Tensor) -> bool:
    logits = [s.logit for s in statistics if isinstance(s.logit, Divided)]
    return bool(logits) and any(logit.opaque(anchor[:1].detach() @ pool[:1].detach().T) for logit in logits)


def _whole(source: Source) -> Iterator[Block]:
    for start, end, _ in source.spans:
        rows = slice(start, end)
        yield source.block(rows, source.similarity(rows))


@dataclass
class _Plan:
    """One reduction: what of, and in which blocks."""

    source: Source
    statistics: tuple[Statistic, ...]
    device: torch.device

    def __post_init__(self) -> None:
        limits = _MEMORY.get() or (_CPU if self.device.type == "cpu" else _DEVICE)
        self.rows: list[slice] = []
        for start, end, candidates in self.source.spans:
            step = max(limits.rows, limits.block // max(1, candidates))
            self.rows += [slice(first, min(first + step, end)) for first in range(start, end, step)]
        self.keeps = sum((end - start) * candidates for start, end, candidates in self.source.spans) <= limits.kept

    @property
    def factors(self) -> list[Tensor | None]:
        return [s.logit.learned if s.logit is not None else None for s in self.statistics]

    def blocks(self, kept: Sequence[Tensor] = ()) -> Iterator[Block]:
        """Every block, from the similarities kept on the way forward, or computed."""
        for place, rows in enumerate(self.rows):
            yield self.source.block(
                rows, kept[place] if kept else self.source.similarity(rows, bf16=self.source.half_precision)
            )

    def values(self, kept: Sequence[Tensor] = ()) -> tuple[Tensor, ...]:
        """Every statistic of every row. Written where they stay: small results between large blocks would scatter memory."""
        made: list[Tensor] = []
        for block in self.blocks(kept):
            parts = [statistic(block) for statistic in self.statistics]
            if len(self.rows) == 1:
                return tuple(parts)
            made = made or [part.new_empty((self.rows[-1].stop, *part.shape[1:])) for part in parts]
            for whole, part in zip(made, parts, strict=True):
                whole[block.rows] = part
        return tuple(made)


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: _Plan, anchor: Tensor, pool: Tensor, *factors: Tensor | None) -> tuple[Tensor, ...]:
        kept = (
            [plan.source.similarity(rows, bf16=plan.source.half_precision) for rows in plan.rows]
            if plan.keeps and any(ctx.needs_input_grad)
            else []
        )
        values = plan.values(kept)
        ctx.plan = plan
        ctx.save_for_backward(anchor, pool, *values, *kept)
        return values

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        plan: _Plan = ctx.plan
        anchor, pool, *saved = ctx.saved_tensors
        values, kept = saved[: len(plan.statistics)], saved[len(plan.statistics) :]
        _, wants_anchor, wants_pool, *_ = ctx.needs_input_grad
        # All rows at once of a matrix that is its own transpose: both halves of the gradient in one product.
        at_once = wants_anchor and wants_pool and len(plan.rows) == 1 and same_tensor(anchor, pool)
        d_anchor = torch.empty_like(anchor) if wants_anchor and not at_once else None
        d_pool = torch.zeros_like(pool) if wants_pool and not at_once else None
        d_factors: list[list[Tensor]] = [[] for _ in plan.statistics]
        for block in plan.blocks(kept):
            total = None
            for place, statistic in enumerate(plan.statistics):
                value, gradient = values[place][block.rows], gradients[place][block.rows]
                moved, learned = statistic.back(block, value, gradient)
                if learned is not None:
                    d_factors[place].append(learned)
                if moved is not None:
                    total = moved if total is None else total.add_(moved)
            total = _all_columns(total, block, len(pool[block.pool]))
            if at_once:
                d_anchor = matmul(total + total.T, anchor, bf16=plan.source.half_precision)
                break
            if d_anchor is not None:
                d_anchor[block.rows] = matmul(total, pool[block.pool], bf16=plan.source.half_precision)
            if d_pool is not None:
                d_pool[block.pool] += matmul(total.T, anchor[block.rows], bf16=plan.source.half_precision)
        # One factor for each anchor, or one for all, whose gradients add up.
        shaped = [
            None if factor is None or not parts else torch.cat(parts) if factor.ndim else torch.cat(parts).sum()
            for factor, parts in zip(plan.factors, d_factors, strict=True)
        ]
        return None, d_anchor, d_pool, *shaped


def _all_columns(total: Tensor | None, block: Block, width: int) -> Tensor:
    """Gradients of the chosen similarities, back in the columns they were chosen from."""
    rows = block.similarity.shape[0]
    if total is None:
        return block.similarity.new_zeros((rows, width))
    if block.columns is None:
        return total
    return total.new_zeros((rows, width)).scatter_(1, block.columns, total)
