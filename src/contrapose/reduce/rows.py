"""The reduction itself, and its derivative."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from contrapose.reduce.block import Block, Source
from contrapose.reduce.statistics import Statistic


@dataclass(frozen=True)
class Memory:
    """How many similarities may be in flight at once, and how many may be kept for the backward pass."""

    block: int
    kept: int
    rows: int = 1  # in a block, at least: fewer would not fill a matrix product


# In float32, in flight: 2 MiB on the CPU, which stays in cache, and 256 MiB where launches cost; kept: 64 MiB, 1 GiB.
_CPU, _DEVICE = Memory(2**19, 2**24, 64), Memory(2**26, 2**28, 64)
_DENSE = Memory(2**62, 2**62)
_MEMORY: ContextVar[Memory | None] = ContextVar("memory", default=None)
_FUSED: ContextVar[str] = ContextVar("fused", default="")


@contextmanager
def path(name: str, *, precision: str = "ieee") -> Iterator[None]:
    """Inside, reductions take one path: "dense" (the whole matrix, kept), "chunked" (blocks, recomputed) or "fused".

    "fused" is for log-sum-exps of all negatives in Triton kernels, with products in "ieee" float32, "tf32" or "bf16"; what it
    cannot do is done in blocks. Outside, the sizes decide between the first two.
    """
    limits = {"dense": _DENSE, "chunked": Memory(2**22, 0, 64), "fused": None}
    if name not in limits:
        raise ValueError(f"path: expected dense, chunked or fused, got {name!r}")
    if precision not in ("ieee", "tf32", "bf16"):
        raise ValueError(f"precision: expected ieee, tf32 or bf16, got {precision!r}")
    memory_token, fused_token = _MEMORY.set(limits[name]), _FUSED.set(precision if name == "fused" else "")
    try:
        yield
    finally:
        _MEMORY.reset(memory_token)
        _FUSED.reset(fused_token)


@contextmanager
def memory(*, block: int, kept: int) -> Iterator[None]:
    """Inside, a block holds at most `block` similarities (one row at least) and at most `kept` are kept."""
    token = _MEMORY.set(Memory(block, kept))
    try:
        yield
    finally:
        _MEMORY.reset(token)


def reduce_rows(source: Source, *statistics: Statistic) -> tuple[Tensor, ...]:
    """Each statistic of each anchor's negatives, (n,) tensors that carry gradients (first derivatives)."""
    anchor, pool = source.anchor, source.pool
    # Given similarities, and temperatures with parameters of their own, are left to autograd as they are.
    if anchor is None or pool is None or _opaque(statistics, anchor, pool):
        parts = [[s(block) for s in statistics] for block in _whole(source)]
        return tuple(torch.cat(column) for column in zip(*parts, strict=True))
    if _FUSED.get():
        found = _fused(source, statistics, anchor, pool, _FUSED.get())
        if found is not None:
            return found
    plan = _Plan(source, statistics, anchor.device)
    values: tuple[Tensor, ...] = _Rows.apply(plan, anchor, pool, *plan.factors)
    return values


def _fused(
    source: Source, statistics: tuple[Statistic, ...], anchor: Tensor, pool: Tensor, precision: str
) -> tuple[Tensor, ...] | None:
    """By kernels, where they can do it."""
    from contrapose.reduce import fused  # needs Triton

    phis = [fused.exponent(statistic, len(anchor), anchor) for statistic in statistics]
    if source.ids is None or anchor.dtype != torch.float32 or anchor.shape[1] > fused.WIDEST or None in phis:
        return None
    return tuple(fused.log_sum_exp(anchor, pool, *source.ids, phi, precision) for phi in phis if phi is not None)


def _opaque(statistics: tuple[Statistic, ...], anchor: Tensor, pool: Tensor) -> bool:
    sample = anchor[:1].detach() @ pool[:1].detach().T
    return any(s.logit is not None and s.logit.opaque(sample) for s in statistics)


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
            yield self.source.block(rows, kept[place] if kept else self.source.similarity(rows))

    def values(self, kept: Sequence[Tensor] = ()) -> tuple[Tensor, ...]:
        """Every statistic of every row. Written where they stay: small results between large blocks would scatter memory."""
        made: list[Tensor] = []
        for block in self.blocks(kept):
            parts = [statistic(block) for statistic in self.statistics]
            made = made or [part.new_empty((self.rows[-1].stop, *part.shape[1:])) for part in parts]
            for whole, part in zip(made, parts, strict=True):
                whole[block.rows] = part
        return tuple(made)


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: _Plan, anchor: Tensor, pool: Tensor, *factors: Tensor | None) -> tuple[Tensor, ...]:
        kept = [plan.source.similarity(rows) for rows in plan.rows] if plan.keeps and any(ctx.needs_input_grad) else []
        values = plan.values(kept)
        ctx.plan = plan
        ctx.save_for_backward(anchor, pool, *values, *kept)
        return values

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True
            raise RuntimeError("first derivatives only: losses of embeddings have no second derivative here")
        plan: _Plan = ctx.plan
        anchor, pool, *saved = ctx.saved_tensors
        values, kept = saved[: len(plan.statistics)], saved[len(plan.statistics) :]
        _, wants_anchor, wants_pool, *_ = ctx.needs_input_grad
        d_anchor = torch.empty_like(anchor) if wants_anchor else None
        d_pool = torch.zeros_like(pool) if wants_pool else None
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
            if d_anchor is not None:
                torch.mm(total, pool[block.pool], out=d_anchor[block.rows])
            if d_pool is not None:
                d_pool[block.pool].addmm_(total.T, anchor[block.rows])
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
