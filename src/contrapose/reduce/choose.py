"""Choose the engine for a reduction, and record the reason."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from contrapose.reduce import cpu
from contrapose.reduce.block import Prefix, Selection, Source
from contrapose.reduce.exponent import MAX_SHIFT, Exponent, exponent
from contrapose.reduce.hardware import has_kernels
from contrapose.reduce.logit import Logit, Scale
from contrapose.reduce.matrix_blocks import both_directions
from contrapose.reduce.path import NOTHING, forced
from contrapose.reduce.request import Group, group_by_exponent
from contrapose.reduce.soft import GuideProducts, SoftSums
from contrapose.reduce.statistics import Count, LogSumExp, Mean, Statistic
from contrapose.reduce.unit import same_tensor

# Largest matrices for plain autograd, on a CPU and on a GPU: at this size, time depends on the number of operations only.
_SMALL = {False: 2**18, True: 2**20}
MAX_FUSED_WIDTH = 256  # up to this width a program keeps its rows and their gradient in registers
MAX_PREFIXES = 6  # up to this number a program keeps the weights of all prefixes in registers
PREFIX_STEP = 32  # coordinates that kernels multiply at a time, at least; no prefix ends in between
MAX_WIDTH = 2048  # up to this width kernels are tested; wider embeddings are reduced in blocks


@dataclass(frozen=True, eq=False)
class EngineChoice:
    """The engine of a reduction: autograd (plain operations), means, cpu, fused, tiled or blocks."""

    name: str
    reason: str
    precision: str = ""  # of the products in kernels
    groups: tuple[Group | None, ...] = ()  # of statistics that kernels compute
    prefix: Prefix | None = None  # if kernels compute the statistics of all prefixes in one pass

    def __str__(self) -> str:
        return f"{self.name}: {f'{self.precision}, ' if self.precision else ''}{self.reason}"


_CHOSEN: ContextVar[list[EngineChoice] | None] = ContextVar("chosen", default=None)


@contextmanager
def chosen_engines() -> Iterator[list[EngineChoice]]:
    """Collect the engines chosen in this context, in order: `print(*chosen, sep="\\n")` shows each engine and the reason.

    >>> from contrapose import nt_xent, two_views
    >>> with chosen_engines() as chosen:
    ...     loss = nt_xent(two_views(torch.randn(8, 4), torch.randn(8, 4)), temperature=0.1)
    >>> print(*chosen)
    cpu: a log-sum-exp of s / τ on a CPU, with τ a number
    """
    chosen: list[EngineChoice] = []
    token = _CHOSEN.set(chosen)
    try:
        yield chosen
    finally:
        _CHOSEN.reset(token)


def _note(choice: EngineChoice) -> EngineChoice:
    chosen = _CHOSEN.get()
    if chosen is not None:
        chosen.append(choice)
    return choice


def choose_engine(source: Source, statistics: tuple[Statistic, ...]) -> EngineChoice:
    """Return the engine that computes statistics of a source on its device, in this context."""
    return _note(_choose(source, statistics))


def _choose(source: Source, statistics: tuple[Statistic, ...]) -> EngineChoice:
    anchor, pool, selection = source.anchor, source.pool, source.selection
    if anchor is None or pool is None:
        return _AUTOGRAD_VALUES
    if selection is None:
        return _AUTOGRAD_LEARNED if _needs_autograd(statistics, anchor, pool) else _BLOCKS_CHOICE
    if _may_use_cpu(anchor) and cpu.constant_scale(statistics, selection) is not None:
        return _CPU
    small = forced() == NOTHING and len(anchor) * len(pool) <= _SMALL[anchor.is_cuda]
    if small and not anchor.is_cuda:
        return _AUTOGRAD_SMALL
    only_means = selection.keeps_all and all(isinstance(statistic, Mean | Count) for statistic in statistics)
    if only_means and forced() == NOTHING:
        return _MEANS
    precision = kernel_precision(source, anchor)
    obstacle = one_pass_obstacle(source, statistics, precision)
    if not obstacle and precision is not None:
        return EngineChoice("tiled", _ONE_PASS, precision, prefix=source.kernel_inputs.prefix)
    if precision is not None and fits_kernels(anchor, pool) and _fits_ceiling(selection, anchor, pool):
        groups = group_by_exponent(statistics, anchor)
        # The number of negatives below a ceiling is not known before the kernel.
        if groups is not None and (selection.ceiling is None or None not in groups):
            name = kernel_engine(source, anchor, pool)
            return EngineChoice(name, _kernel_reason(name, source, obstacle), precision, tuple(groups))
        if _guide_of(source, statistics) is not None:
            return EngineChoice("tiled", _SOFT, precision)
    if _needs_autograd(statistics, anchor, pool):
        return _AUTOGRAD_LEARNED
    return _AUTOGRAD_SMALL if small else _BLOCKS


def _guide_of(source: Source, statistics: tuple[Statistic, ...]) -> GuideProducts | None:
    """Return the guide of a log-sum-exp and soft targets that kernels can compute together; None if they cannot."""
    if [type(statistic) for statistic in statistics] != [LogSumExp, SoftSums]:
        return None
    total, soft = statistics
    anchor, pool, selection = source.anchor, source.pool, source.selection
    assert isinstance(soft, SoftSums)
    assert anchor is not None
    assert pool is not None
    assert selection is not None
    guide = soft.log_weights.guide_products()
    if guide is None or soft.logit is not total.logit or not selection.keeps_all:
        return None
    if not _fits_guide(guide.anchor, guide.pool, anchor, pool) or exponent(soft.logit, len(anchor), anchor) is None:
        return None
    return guide if guide.temperature is None or guide.bound <= MAX_SHIFT * guide.temperature else None


def _fits_guide(guide_anchor: Tensor, guide_pool: Tensor, anchor: Tensor, pool: Tensor) -> bool:
    """Return whether kernels can read a guide's rows beside these embeddings."""
    # A tile that serves both directions holds one number for both.
    symmetric = same_tensor(guide_anchor, guide_pool) or not same_tensor(anchor, pool)
    return symmetric and fits_kernels(guide_anchor, guide_pool)


def _fits_ceiling(selection: Selection, anchor: Tensor, pool: Tensor) -> bool:
    """Return whether kernels can compute the ceiling of this selection, if it has one."""
    guide = None if selection.ceiling is None else selection.ceiling.guide
    return guide is None or _fits_guide(*guide, anchor, pool)


def choose_sum(source: Source, logit: Logit) -> tuple[EngineChoice, Exponent] | None:
    """Return the engine that sums sigmoid losses over all anchors in one pass, and its exponent; None if there is none."""
    anchor, pool, selection = source.anchor, source.pool, source.selection
    if anchor is None or pool is None or selection is None or torch.compiler.is_compiling():
        return None
    per_anchor = isinstance(logit, Scale) and isinstance(logit.factor, Tensor) and logit.factor.ndim > 0
    precision = None if per_anchor else kernel_precision(source, anchor)
    if precision is None or not selection.keeps_all or not fits_kernels(anchor, pool):
        return None
    phi = exponent(logit, 1, anchor)
    return None if phi is None else (_note(EngineChoice("tiled", _SIGMOID, precision)), phi)


def choose_one_node(source: Source, similarity: Tensor, logit: Logit, *, sigmoid: bool) -> EngineChoice | None:
    """Return the engine that computes the loss of two views in one autograd function; None if there is none.

    `similarity` (n, 1) holds the similarities to the positives.
    """
    anchor, pool, selection = source.anchor, source.pool, source.selection
    if anchor is None or pool is None or selection is None or torch.compiler.is_compiling():
        return None
    if similarity.shape[1] != 1 or pool is not anchor:
        return None
    if not sigmoid and selection.keeps_all and _may_use_cpu(anchor) and cpu.bounded_factor(logit) is not None:
        return _note(_CPU)
    precision = kernel_precision(source, anchor)
    is_number = isinstance(logit, Scale) and not (isinstance(logit.factor, Tensor) and logit.factor.ndim)
    if precision is None or not is_number or not fits_kernels(anchor, pool):
        return None
    if sigmoid:
        return _note(EngineChoice("tiled", _SIGMOID, precision)) if selection.keeps_all else None
    obstacle = one_pass_obstacle(source, (LogSumExp(logit),), precision)
    if not obstacle or not _fits_ceiling(selection, anchor, pool):
        return None
    name = kernel_engine(source, anchor, pool)
    return _note(EngineChoice(name, _kernel_reason(name, source, obstacle), precision))


def one_pass_obstacle(source: Source, statistics: tuple[Statistic, ...], precision: str | None) -> str:
    """Return why one pass cannot compute these statistics for all prefixes of the embeddings; empty if it can."""
    prefix, selection, anchor = source.kernel_inputs.prefix, source.selection, source.anchor
    if prefix is None or anchor is None:
        return "these are not one of several prefixes"
    if forced().path not in ("fused", "tiled"):
        return "one pass for all has not been timed on a GPU yet (path('tiled') chooses it)"
    nested = prefix.nested
    if precision is None or not fits_kernels(nested.anchor, nested.pool):
        return "the device, the context or the embeddings do not allow kernels"
    if not 2 <= len(nested.widths) <= MAX_PREFIXES:
        return f"there are {len(nested.widths)} prefixes, and not 2 to {MAX_PREFIXES}"
    if math.gcd(*nested.widths) % PREFIX_STEP:
        return f"not all widths are multiples of {PREFIX_STEP}"
    if anchor is not prefix.anchor or source.pool is not prefix.pool:
        return "the objective has replaced anchors or candidates"
    if anchor.shape[1] != nested.widths[prefix.index]:
        return "an anchor consists of two vectors"
    if len(statistics) != 1 or not isinstance(statistics[0], LogSumExp):
        return "the loss needs more than one log-sum-exp"
    if selection is None or not selection.keeps_all:
        return "not all rows with other ids are negatives"
    phi = exponent(statistics[0].logit, len(anchor), anchor)
    if phi is None or not phi.is_bounded:
        return "no constant bounds the exponent"
    # The settings of all prefixes are the same. If an objective still computes something else for each, this would repeat
    # all prefixes for every one.
    if prefix.index and nested.totals(phi.key, selection) is None:
        return "the first prefix requested another statistic"
    return ""


def _kernel_reason(name: str, source: Source, obstacle: str) -> str:
    reason = _KERNEL_REASONS[name]
    return reason if source.kernel_inputs.prefix is None else f"{reason}; a pass for each prefix, since {obstacle}"


_CPU = EngineChoice("cpu", "a log-sum-exp of s / τ on a CPU, with τ a number")
_MEANS = EngineChoice("means", "means of similarities come from sums of embeddings")
_BLOCKS = EngineChoice("blocks", "no other engine supports these statistics, this device or this context")
_BLOCKS_CHOICE = EngineChoice("blocks", "kernels do not support this choice of negatives, or this similarity")
_AUTOGRAD_VALUES = EngineChoice("autograd", "similarity values were given, which support all derivatives")
_AUTOGRAD_LEARNED = EngineChoice("autograd", "the temperature is a function with parameters of its own")
_AUTOGRAD_SMALL = EngineChoice("autograd", "the matrix is so small that plain operations are the fastest")
_SOFT = "a softmax and a guide's soft targets in one pass"
_ONE_PASS = "all prefixes of the embeddings in one pass"
_SIGMOID = "a sum of sigmoid losses and its gradient in one pass"
_KERNEL_REASONS = {
    "fused": f"Triton kernels for widths up to {MAX_FUSED_WIDTH}",
    "tiled": f"Triton kernels for widths up to {MAX_WIDTH}, and for both directions of two sides",
}


def kernel_engine(source: Source, anchor: Tensor, pool: Tensor) -> str:
    """Return the name of the kernel engine for these embeddings: fused or tiled."""
    assert source.selection is not None
    guided = source.selection.ceiling is not None and source.selection.ceiling.guide is not None
    wide = anchor.shape[1] > MAX_FUSED_WIDTH or forced().path == "tiled" or guided
    return "tiled" if wide or both_directions(source.selection.runs, same_tensor(anchor, pool)) else "fused"


def fits_kernels(anchor: Tensor, pool: Tensor) -> bool:
    """Return whether kernels can read these embeddings."""
    return anchor.dtype == torch.float32 and anchor.shape[1] <= MAX_WIDTH and anchor.device == pool.device


def kernel_precision(source: Source, anchor: Tensor) -> str | None:
    """Return the precision of the kernels' products; None if this device or context does not use kernels."""
    context = forced()
    if context.path not in (None, "fused", "tiled"):
        return None
    if context.path is None and (context.memory is not None or not has_kernels(anchor.device)):
        return None
    precision = context.precision or _precision(source.kernel_inputs.half_precision)
    return precision if context.path is not None or _tiles_fit(anchor.device, precision) else None


def _tiles_fit(device: torch.device, precision: str) -> bool:
    """Whether the kernels' tiles fit in shared memory: float32 tiles do on data-centre GPUs from Hopper on."""
    return precision == "bf16" or torch.cuda.get_device_properties(device).shared_memory_per_block_optin >= 220 * 1024


def _precision(half: bool) -> str:
    if half:
        return "bf16"
    try:
        exact = torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # torch raises this if the precision was set by its newer setting, fp32_precision
        exact = torch.backends.cuda.matmul.fp32_precision != "tf32"
    return "tf32x3" if exact else "tf32"


def _may_use_cpu(anchor: Tensor) -> bool:
    """Whether these are tensors on the CPU, and no other path is forced."""
    context = forced()
    # Under a tracer (make_fx, fake tensors) there are no id values to search.
    return anchor.is_cpu and (context == NOTHING or context.path == "cpu") and not is_in_torch_dispatch_mode()


def _needs_autograd(statistics: tuple[Statistic, ...], anchor: Tensor, pool: Tensor) -> bool:
    # `backward` computes the gradient of a `Scale`'s only parameter.
    logits = [s.logit for s in statistics if s.logit is not None and not isinstance(s.logit, Scale)]
    return bool(logits) and any(logit.needs_autograd(anchor[:1].detach() @ pool[:1].detach().T) for logit in logits)
