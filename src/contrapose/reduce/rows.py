"""`reduce_rows`: choose how statistics are computed, and compute them block by block where kernels do not apply."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from contrapose.reduce import cpu
from contrapose.reduce.block import Block, Selection, Source
from contrapose.reduce.derivatives import check_backward, refuse_transforms
from contrapose.reduce.hardware import has_kernels
from contrapose.reduce.logit import Logit, Scale
from contrapose.reduce.means import means
from contrapose.reduce.statistics import SoftplusSum, Statistic, learned_tensors
from contrapose.reduce.unit import RawViews, matmul, same_tensor
from contrapose.validate import check_choice


@dataclass(frozen=True)
class Memory:
    """Limits on the number of similarities."""

    block: int  # in one block
    kept: int  # kept for the backward pass; a larger matrix is computed again
    rows: int = 1  # least number of rows in a block: fewer would not fill a matrix product


# Blocks of float32 take 2 MiB on the CPU, to stay in cache, and 256 MiB on a GPU, where launches cost. Up to 64 MiB
# and 1 GiB are kept.
_CPU, _DEVICE = Memory(2**19, 2**24, 64), Memory(2**26, 2**28, 64)
_DENSE = Memory(2**62, 2**62)
_SMALL = {False: 2**18, True: 2**20}  # similarities left to plain autograd, on the CPU and on a GPU
_MEMORY: ContextVar[Memory | None] = ContextVar("memory", default=None)
PATHS = ("dense", "chunked", "fused")
PRECISIONS = ("ieee", "tf32x3", "tf32", "bf16")


@dataclass(frozen=True)
class _Forced:
    path: str | None = None
    precision: str | None = None


_NOT_FORCED = _Forced()
_FORCED: ContextVar[_Forced | None] = ContextVar("forced", default=None)


@contextmanager
def path(name: str, *, precision: str | None = None) -> Iterator[None]:
    """Force one path for all reductions in this context.

    dense     the whole matrix, kept for the backward pass
    chunked   blocks of rows, computed again in the backward pass
    fused     Triton kernels, and blocks for what kernels do not support. `precision` of the products: "ieee" float32,
              "tf32x3" (three tf32 products, nearly float32), "tf32" or "bf16"

    By default a GPU uses kernels wherever they apply: in bf16 for half-precision embeddings, in tf32 if torch is
    allowed that for float32 products, and in tf32x3 otherwise. Elsewhere the size of the matrix decides between dense
    and chunked, except that a CPU has a path of its own for a log-sum-exp with a number as temperature (`cpu`).
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
    """Limit blocks to `block` similarities (at least one row), and those kept for backward to `kept`."""
    token = _MEMORY.set(Memory(block, kept))
    try:
        yield
    finally:
        _MEMORY.reset(token)


def reduce_rows(source: Source, *statistics: Statistic) -> tuple[Tensor, ...]:
    """Return each statistic of each anchor's negatives, (n,) tensors with first derivatives."""
    if torch.compiler.is_compiling():
        # Blocks and kernels are tuned already, and a compiler would unroll the loop over blocks.
        values: tuple[Tensor, ...] = torch.compiler.disable(_reduce_rows)(source, *statistics)
        return values
    return _reduce_rows(source, *statistics)


def _reduce_rows(source: Source, *statistics: Statistic) -> tuple[Tensor, ...]:
    anchor, pool, selection = source.anchor, source.pool, source.selection
    # Plain autograd takes similarity values, temperatures with parameters of their own and, where kernels do not apply,
    # matrices so small that the number of operations decides the time and not their size.
    if anchor is None or pool is None:
        return _by_autograd(source, statistics)
    refuse_transforms()
    factor = cpu.constant_scale(statistics, selection) if selection is not None and _is_plain_cpu(anchor) else None
    if selection is not None and factor is not None:
        return (cpu.log_sum_exp(anchor, pool, selection, factor, keep=_fits_cpu(anchor, pool)),)
    small = selection is not None and _small(anchor, pool)
    if selection is not None and not (small and not anchor.is_cuda):
        reduced = _without_blocks(source, anchor, pool, selection, statistics)
        if reduced is not None:
            return reduced
    if small or _needs_autograd(statistics, anchor, pool):
        return _by_autograd(source, statistics)
    plan = _Plan(source, statistics, anchor.device)
    values: tuple[Tensor, ...] = _Rows.apply(plan, anchor, pool, *plan.learned)
    return values


def sum_rows(source: Source, statistic: SoftplusSum) -> Tensor:
    """Return the sum of a statistic over all anchors, a scalar: on a GPU its gradient comes from the same pass."""
    anchor, pool, selection = source.anchor, source.pool, source.selection
    if anchor is not None and pool is not None and selection is not None and not torch.compiler.is_compiling():
        precision = _kernel_precision(source, anchor)
        if precision is not None:
            from contrapose.reduce.sigmoid import sum_of_softplus  # imported late, since it needs Triton

            total = sum_of_softplus(
                anchor, pool, selection, statistic, precision=precision, bf16_anchor=source.bf16_anchor
            )
            if total is not None:
                return total
    return reduce_rows(source, statistic)[0].sum()


def cross_entropy_of_views(source: Source, raw: RawViews, similarity: Tensor, logit: Logit) -> Tensor | None:
    """Return the mean cross-entropy of two views from one node of the graph; None if neither kernels nor `cpu` apply."""
    on_cpu = _on_cpu(source, logit)
    if on_cpu is not None:
        anchor, selection, factor = on_cpu
        keep = _fits_cpu(anchor, anchor)
        return cpu.mean_cross_entropy(raw, anchor, similarity, selection, factor, keep=keep)
    found = _one_node(source, logit)
    if found is None:
        return None
    from contrapose.reduce.view_loss import mean_cross_entropy  # imported late, since it needs Triton

    anchor, selection, scale, precision = found
    return mean_cross_entropy(
        raw, anchor, similarity, selection, scale, precision=precision, bf16_anchor=source.bf16_anchor
    )


def sigmoid_loss_of_views(
    source: Source, raw: RawViews, similarity: Tensor, logit: Logit, bias: float | Tensor
) -> Tensor | None:
    """Return the mean sigmoid loss of two views from one node of the graph; None if kernels do not apply."""
    found = _one_node(source, logit)
    if found is None:
        return None
    from contrapose.reduce.sigmoid import mean_sigmoid_loss  # imported late, since it needs Triton

    anchor, selection, factor, precision = found
    return mean_sigmoid_loss(
        raw, anchor, similarity, selection, factor, bias, precision=precision, bf16_anchor=source.bf16_anchor
    )


def _on_cpu(source: Source, logit: Logit) -> tuple[Tensor, Selection, float] | None:
    """Return anchors, selection and 1 / τ of a loss that `cpu` computes as one node; None if it does not."""
    anchor = source.anchor
    if anchor is None or torch.compiler.is_compiling() or not _is_plain_cpu(anchor):
        return None
    selection, factor = source.selection, cpu.bounded_factor(logit)
    if selection is None or selection.hardest is not None or factor is None:
        return None
    return anchor, selection, factor


def _one_node(source: Source, logit: Logit) -> tuple[Tensor, Selection, float | Tensor, str] | None:
    """Return anchors, selection, 1 / τ and precision of a loss that kernels compute as one node; None if they do not."""
    anchor, selection = source.anchor, source.selection
    if anchor is None or selection is None or torch.compiler.is_compiling():
        return None
    precision = _kernel_precision(source, anchor)
    if precision is None or not isinstance(logit, Scale) or (isinstance(logit.factor, Tensor) and logit.factor.ndim):
        return None
    return anchor, selection, logit.factor, precision


def _by_autograd(source: Source, statistics: tuple[Statistic, ...]) -> tuple[Tensor, ...]:
    parts = [[s(block) for s in statistics] for block in _whole_runs(source)]
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))


def _without_blocks(
    source: Source, anchor: Tensor, pool: Tensor, selection: Selection, statistics: tuple[Statistic, ...]
) -> tuple[Tensor, ...] | None:
    """Return means, and whatever kernels support on this device; None if blocks are needed."""
    forced = _FORCED.get() or _NOT_FORCED
    if forced.path is None and _MEMORY.get() is None:
        mean_values = means(anchor, pool, selection, statistics)
        if mean_values is not None:
            return mean_values
    precision = _kernel_precision(source, anchor)
    if precision is None:
        return None
    from contrapose.reduce import fused  # imported late, since it needs Triton

    return fused.reduce(anchor, pool, selection, statistics, precision=precision, bf16_anchor=source.bf16_anchor)


def _kernel_precision(source: Source, anchor: Tensor) -> str | None:
    """Return the precision of the kernels' products; None if this device or context does not use kernels."""
    forced = _FORCED.get() or _NOT_FORCED
    if forced.path is None and (_MEMORY.get() is not None or not has_kernels(anchor.device)):
        return None
    if forced.path not in (None, "fused"):
        return None
    precision = forced.precision or _precision(source.half_precision)
    return precision if forced.path is not None or _tiles_fit(anchor.device, precision) else None


def _tiles_fit(device: torch.device, precision: str) -> bool:
    """Whether the kernels' tiles fit in shared memory: float32 tiles do on data-centre GPUs from Hopper on."""
    return precision == "bf16" or torch.cuda.get_device_properties(device).shared_memory_per_block_optin >= 220 * 1024


def _precision(half: bool) -> str:
    if half:
        return "bf16"
    try:
        exact = torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # raised if the precision was set through torch's newer setting, fp32_precision
        exact = torch.backends.cuda.matmul.fp32_precision != "tf32"
    return "tf32x3" if exact else "tf32"


def _small(anchor: Tensor, pool: Tensor) -> bool:
    return len(anchor) * len(pool) <= _SMALL[anchor.is_cuda] and _MEMORY.get() is None and _FORCED.get() is None


def _fits_cpu(anchor: Tensor, pool: Tensor) -> bool:
    """Whether the whole matrix is kept for the backward pass on the CPU."""
    return anchor.shape[0] * pool.shape[0] <= _CPU.kept


def _is_plain_cpu(anchor: Tensor) -> bool:
    """Whether these are tensors on the CPU, and neither a path nor memory is forced."""
    # A tracer (make_fx, fake tensors) has no ids to search in.
    return anchor.is_cpu and _MEMORY.get() is None and _FORCED.get() is None and not is_in_torch_dispatch_mode()


def _needs_autograd(statistics: tuple[Statistic, ...], anchor: Tensor, pool: Tensor) -> bool:
    # The one parameter of a `Scale` has its gradient from `backward`.
    logits = [s.logit for s in statistics if s.logit is not None and not isinstance(s.logit, Scale)]
    return bool(logits) and any(logit.needs_autograd(anchor[:1].detach() @ pool[:1].detach().T) for logit in logits)


def _whole_runs(source: Source) -> Iterator[Block]:
    for start, end, _ in source.spans:
        rows = slice(start, end)
        yield source.block(rows, source.similarity(rows))


@dataclass
class _Plan:
    """One reduction: its source, its statistics and its blocks of rows."""

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
    def learned(self) -> list[Tensor | None]:
        return [tensor for statistic in self.statistics for tensor in learned_tensors(statistic)]

    def blocks(self, kept: Sequence[Tensor] = ()) -> Iterator[Block]:
        """Yield every block, from the similarities kept in the forward pass or computed again."""
        for i, rows in enumerate(self.rows):
            yield self.source.block(
                rows, kept[i] if kept else self.source.similarity(rows, bf16=self.source.half_precision)
            )

    def values(self, kept: Sequence[Tensor] = ()) -> tuple[Tensor, ...]:
        """Return every statistic of every row, (n,) each."""
        values: list[Tensor] = []
        for block in self.blocks(kept):
            parts = [statistic(block) for statistic in self.statistics]
            if len(self.rows) == 1:
                return tuple(parts)
            # Allocated before the second block: small results kept between large blocks would fragment memory.
            values = values or [part.new_empty((self.rows[-1].stop, *part.shape[1:])) for part in parts]
            for whole, part in zip(values, parts, strict=True):
                whole[block.rows] = part
        return tuple(values)


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: _Plan, anchor: Tensor, pool: Tensor, *learned: Tensor | None) -> tuple[Tensor, ...]:
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
        check_backward(*gradients)
        plan: _Plan = ctx.plan
        anchor, pool, *saved = ctx.saved_tensors
        values, kept = saved[: len(plan.statistics)], saved[len(plan.statistics) :]
        _, wants_anchor, wants_pool, *_ = ctx.needs_input_grad
        # If one block holds a matrix that is its own transpose, both terms of the gradient are one product, (G + Gᵀ) z.
        symmetric = wants_anchor and wants_pool and len(plan.rows) == 1 and same_tensor(anchor, pool)
        d_anchor = torch.empty_like(anchor) if wants_anchor and not symmetric else None
        d_pool = torch.zeros_like(pool) if wants_pool and not symmetric else None
        d_learned: list[list[Tensor]] = [[] for _ in plan.learned]
        for block in plan.blocks(kept):
            total = None
            of_block: list[Tensor | None] = []
            for i, statistic in enumerate(plan.statistics):
                value, gradient = values[i][block.rows], gradients[i][block.rows]
                d_similarity, *d_tensors = statistic.backward(block, value, gradient)
                of_block += d_tensors
                if d_similarity is not None:
                    total = d_similarity if total is None else total.add_(d_similarity)
            for parts, part in zip(d_learned, of_block, strict=True):
                if part is not None:
                    parts.append(part)
            total = _all_columns(total, block, len(pool[block.pool]))
            if symmetric:
                d_anchor = matmul(total + total.T, anchor, bf16=plan.source.half_precision)
                break
            if d_anchor is not None:
                d_anchor[block.rows] = matmul(total, pool[block.pool], bf16=plan.source.half_precision)
            if d_pool is not None:
                d_pool[block.pool] += matmul(total.T, anchor[block.rows], bf16=plan.source.half_precision)
        # One number per anchor, or one for all anchors, whose gradients are summed.
        reduced = [
            None if tensor is None or not parts else torch.cat(parts) if tensor.ndim else torch.cat(parts).sum()
            for tensor, parts in zip(plan.learned, d_learned, strict=True)
        ]
        return None, d_anchor, d_pool, *reduced


def _all_columns(total: Tensor | None, block: Block, width: int) -> Tensor:
    """Scatter gradients of the chosen similarities to the columns they were chosen from, (b, width); zeros for None."""
    rows = block.similarity.shape[0]
    if total is None:
        return block.similarity.new_zeros((rows, width))
    if block.columns is None:
        return total
    return total.new_zeros((rows, width)).scatter_(1, block.columns, total)
