"""Statistics of this process's anchors against candidates that travel around a ring, in the forward and the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contrapose.distributed import Group, pass_on, world_size
from contrapose.pairs.negatives import Choice, Hardest, keep_hardest
from contrapose.reduce import Block, Count, KnownResults, Nearest, Source, Statistic, reduce_rows
from contrapose.reduce.derivatives import check_backward
from contrapose.reduce.statistics import learned_tensors
from contrapose.reduce.unit import same_tensor

Reduce = Callable[..., tuple[Tensor, ...]]  # a source and statistics -> their values


@dataclass(frozen=True, eq=False)
class Route:
    """Where the candidates of this process travel. Stored rows, which come first, are the same everywhere and stay."""

    stored: int
    group: Group

    def steps(self, pool: Tensor) -> int:
        """Return the number of blocks that a process meets: one of each process, or its own alone if nothing travels."""
        return world_size(self.group) if len(pool) > self.stored else 1

    def circulate(self, pool: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield (step, candidates): this process's own ones first, then those of the process before it, and so on."""
        steps, travelling = self.steps(pool), pool[self.stored :]
        for step in range(steps):
            # The next block travels while the caller reduces this one.
            wait = pass_on([travelling], self.group) if step + 1 < steps else None
            yield step, travelling if step else pool
            if wait is not None:
                (travelling,) = wait()


@dataclass(frozen=True, eq=False)
class RingRequest:
    """The statistics of each block of candidates, and how a block is compared with the anchors."""

    route: Route
    source: Callable[[int, Tensor, Tensor], Source]  # step, anchors, candidates
    reduce: Reduce
    statistics: tuple[Statistic, ...]

    @property
    def learned(self) -> list[Tensor]:
        """The tensors, besides embeddings, that need a gradient; once each, also if statistics share an exponent."""
        found = [tensor for statistic in self.statistics for tensor in learned_tensors(statistic)]
        return list({id(tensor): tensor for tensor in found if tensor is not None}.values())

    def values(self, step: int, anchor: Tensor, pool: Tensor) -> tuple[Tensor, ...]:
        """Return the statistics of one block."""
        return self.reduce(self.source(step, anchor, pool), *self.statistics)


class _Needs(NamedTuple):
    anchor: bool
    pool: bool


class _BlockStatistics(torch.autograd.Function):
    """The statistics of every block. Of a block, only numbers per anchor are kept for the backward pass: it travels again."""

    @staticmethod
    def forward(ctx: Any, request: RingRequest, anchor: Tensor, pool: Tensor, *learned: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.request, ctx.learned = request, learned
        ctx.save_for_backward(anchor, pool)
        ctx.known = []
        values: tuple[Tensor, ...] = ()
        for step, rows in request.route.circulate(pool):
            known = KnownResults()
            with known.keep() if any(ctx.needs_input_grad) else nullcontext():
                values += request.values(step, anchor, rows)
            ctx.known.append(known)
        return values

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        check_backward(*(gradient for gradient in gradients if gradient is not None))
        request, (anchor, pool) = ctx.request, ctx.saved_tensors
        needs = _Needs(*ctx.needs_input_grad[1:3])
        total = _Total(torch.zeros_like(anchor), [torch.zeros_like(x) for x in ctx.learned])
        stored, group, count = request.route.stored, request.route.group, len(request.statistics)
        steps, travelling, d_travelling = request.route.steps(pool), pool[stored:], pool.new_empty(0)
        for step in range(steps):
            # One exchange for each step: the gradient of the last block follows its candidates, one step behind them.
            moving = [travelling] if step + 1 < steps else []
            moving += [d_travelling] if step and needs.pool else []
            wait = pass_on(moving, group) if moving else None
            upstream = gradients[step * count : (step + 1) * count]
            with ctx.known[step].use():
                d_rows = _add_gradients(request, total, step, anchor, travelling if step else pool, upstream, needs)
            received = wait() if wait is not None else []
            if needs.pool:
                d_travelling = d_rows[len(d_rows) - len(travelling) :]
                if step:
                    d_travelling = d_travelling + received[-1]
            if step + 1 < steps:
                travelling = received[0]
        if steps > 1 and needs.pool:
            (d_travelling,) = pass_on([d_travelling], group)()  # home, from the process that used it last
        d_pool = None
        if needs.pool:
            d_pool = torch.cat([pool.new_zeros((stored, pool.shape[1])), d_travelling]) if stored else d_travelling
        return None, total.anchor if needs.anchor else None, d_pool, *total.learned


@dataclass(frozen=True, eq=False)
class _Total:
    """Gradients that are summed over all blocks."""

    anchor: Tensor
    learned: list[Tensor]


def _add_gradients(
    request: RingRequest, total: _Total, step: int, anchor: Tensor, pool: Tensor, upstream: tuple[Tensor | None, ...],
    needs: _Needs,
) -> Tensor:  # fmt: skip
    """Add one block's contribution to the gradients, and return that of its candidates; zeros if they have none."""
    same = same_tensor(anchor, pool)
    with torch.enable_grad():
        a = anchor.detach().requires_grad_(needs.anchor or (same and needs.pool))
        p = a if same else pool.detach().requires_grad_(needs.pool)
        values = request.values(step, a, p)
    used = [(value, of_value) for value, of_value in zip(values, upstream, strict=True) if of_value is not None]
    used = [(value, of_value) for value, of_value in used if value.requires_grad]
    d_pool = torch.zeros_like(pool)
    sums = [(a, total.anchor), *([] if same else [(p, d_pool)]), *zip(request.learned, total.learned, strict=True)]
    sums = [(tensor, into) for tensor, into in sums if tensor.requires_grad]
    if used and sums:
        outputs, grads = zip(*used, strict=True)
        found = torch.autograd.grad(outputs, [tensor for tensor, _ in sums], grads, allow_unused=True)
        for (_, into), gradient in zip(sums, found, strict=True):
            if gradient is not None:
                into.add_(gradient)
    return d_pool


def reduce_around(request: RingRequest, anchor: Tensor, pool: Tensor) -> list[Tensor]:
    """Return every statistic of each block, (blocks, n) or (blocks, n, k)."""
    values = _BlockStatistics.apply(request, anchor, pool, *request.learned)
    count = len(request.statistics)
    return [torch.stack(values[i::count]) for i in range(count)]


@dataclass(frozen=True, eq=False)
class HardestOfBlock(Choice):
    """Keeps those negatives in one block that are among an anchor's hardest of all blocks."""

    kept: Tensor  # (n,) their number
    most: int  # at least the largest of these numbers

    def __call__(self, block: Block) -> Block:
        """Return a block with at most `most` columns per anchor."""
        return keep_hardest(block, self.kept[block.rows], min(self.most, block.similarity.shape[1]))


@torch.no_grad()
def hardest_by_block(
    request: RingRequest, anchor: Tensor, pool: Tensor, hardest: Hardest, total: int
) -> list[HardestOfBlock]:
    """Return for each block the choice of its share of each anchor's hardest negatives.

    The candidates travel around the ring once. As many similarities as there are hardest negatives are kept per anchor.

    total   number of candidates of all processes
    """
    k = min(hardest.most(total), total)
    best = anchor.new_full((len(anchor), k), -torch.inf)
    origin = torch.zeros_like(best, dtype=torch.int32)
    count = anchor.new_zeros(len(anchor))
    for step, rows in request.route.circulate(pool):
        nearest, negatives = reduce_rows(request.source(step, anchor, rows), Nearest(min(k, len(rows))), Count())
        steps = origin.new_full(nearest.shape, step)
        # Of equal similarities, those of an earlier block are kept.
        best, order = torch.cat([best, nearest], 1).sort(dim=1, descending=True, stable=True)
        best = best[:, :k]
        origin = torch.cat([origin, steps], 1).gather(1, order[:, :k])
        count += negatives
    kept = hardest.kept_count(count, total)
    is_kept = (torch.arange(k, device=anchor.device) < kept[:, None]) & (best > -torch.inf)
    by_block = [(is_kept & (origin == step)).sum(1) for step in range(request.route.steps(pool))]
    if hardest.k is not None:  # few enough columns that the host need not wait for the smaller numbers
        return [HardestOfBlock(number, k) for number in by_block]
    largest = torch.stack(by_block).amax(dim=1).clamp(min=1).tolist()  # one wait for all blocks
    return [HardestOfBlock(number, most) for number, most in zip(by_block, largest, strict=True)]
