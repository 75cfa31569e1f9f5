"""The two autograd functions of the package's losses: statistics of rows, and the loss of two views in one node."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from contrapose.reduce import cpu, known_results
from contrapose.reduce.block import Prefix, Selection, Source
from contrapose.reduce.blocks import BLOCKS, by_autograd, request_blocks
from contrapose.reduce.choose import EngineChoice, choose_engine, choose_one_node, choose_sum
from contrapose.reduce.derivatives import check_backward, refuse_transforms
from contrapose.reduce.engine import AnyEngine, Needs, Operands, plain_operands
from contrapose.reduce.exponent import Exponent, exponent
from contrapose.reduce.heads import CrossEntropy, Head, Number, Sigmoid
from contrapose.reduce.logit import Logit, Scale
from contrapose.reduce.means import means
from contrapose.reduce.request import (
    TOTAL,
    TOTAL_AND_EXPECTATION,
    TWO_TOTALS,
    KernelRequest,
    kernel_operands,
    share_exponential,
)
from contrapose.reduce.soft import SoftSums
from contrapose.reduce.statistics import SoftplusSum, Statistic


class RowStatistics(torch.autograd.Function):
    """Statistics of each anchor's negatives, by any engine."""

    @staticmethod
    def forward(
        ctx: Any,
        engine: AnyEngine,
        request: Any,
        operands: Operands,
        anchor: Tensor,
        pool: Tensor,
        *learned: Tensor | None,
    ) -> tuple[Tensor, ...]:
        """Return the engine's statistics; only autograd uses the arguments `anchor`, `pool` and `learned`."""
        _, _, _, wants_anchor, wants_pool, *wants_learned = ctx.needs_input_grad
        ctx.engine, ctx.request = engine, request
        ctx.needs = Needs(wants_anchor, wants_pool, any(wants_learned))
        values, saved = known_results.forward(engine, operands, request, ctx.needs)
        ctx.save_for_backward(*saved)
        return values

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of anchors, pool and learned tensors."""
        check_backward(*gradients)
        found = ctx.engine.backward(ctx.request, ctx.saved_tensors, gradients, ctx.needs)
        return None, None, None, *found[: len(ctx.needs_input_grad) - 3]


class LossOfViews(torch.autograd.Function):
    """The mean loss of two views: statistics of an engine and the positives of a head, in one node of the graph.

    With a few thousand samples the GPU waits for the CPU, where the overhead of a graph node exceeds its arithmetic.
    """

    @staticmethod
    def forward(
        ctx: Any, engine: AnyEngine, head: Head, request: Any, operands: Operands, anchor: Tensor, similarity: Tensor,
        scale: Number, bias: Number | None,
    ) -> Tensor:  # fmt: skip
        """Return the loss; `similarity` (n, 1) holds the similarities to the positives."""
        *_, wants_anchor, _, wants_scale, wants_bias = ctx.needs_input_grad
        ctx.engine, ctx.head, ctx.request = engine, head, request
        ctx.needs = Needs(wants_anchor, wants_anchor, wants_scale or wants_bias)
        ctx.dtypes = [x.dtype if isinstance(x, Tensor) else None for x in (scale, bias)]
        (value,), saved = engine.forward(operands, request, ctx.needs)
        loss, rows = head.forward(value, similarity, in_kernels=engine.name != "cpu")
        ctx.save_for_backward(rows, *saved)
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of anchors, similarities, scale and bias."""
        check_backward(*gradients)
        rows, *saved = ctx.saved_tensors
        _, d_value, d_similarity, *d_numbers = (rows * gradients[0]).unbind()
        found = ctx.engine.backward(ctx.request, saved, (ctx.head.of_statistics(d_value),), ctx.needs)
        d_anchor, d_pool, d_learned = (*found, None)[:3]
        if d_pool is not None:
            d_anchor = d_anchor + d_pool
        learned: tuple[Tensor | None, ...] = (None, None)
        if ctx.needs.learned:
            learned = tuple(
                None if value is None or not wanted else value.to(dtype)
                for value, dtype, wanted in zip(
                    ctx.head.of_numbers(d_numbers, d_learned), ctx.dtypes, ctx.needs_input_grad[6:], strict=True
                )
            )
        return None, None, None, None, d_anchor, d_similarity.unsqueeze(1), *learned


def reduce_rows(source: Source, *statistics: Statistic) -> tuple[Tensor, ...]:
    """Return each statistic of each anchor's negatives, (n,) tensors with first derivatives."""
    if torch.compiler.is_compiling():
        # Not compiled: blocks and kernels are already tuned, and a compiler would unroll the loop over blocks.
        values: tuple[Tensor, ...] = torch.compiler.disable(_reduce_rows)(source, *statistics)
        return values
    return _reduce_rows(source, *statistics)


def _reduce_rows(source: Source, *statistics: Statistic) -> tuple[Tensor, ...]:
    anchor, pool, selection = source.anchor, source.pool, source.selection
    if anchor is not None:
        refuse_transforms()
    choice = choose_engine(source, statistics)
    if choice.name == "autograd" or anchor is None or pool is None:
        return by_autograd(source, statistics)
    if choice.name == "blocks" or selection is None:
        request = request_blocks(source, statistics, anchor.device)
        return _apply(BLOCKS, request, plain_operands(anchor, pool), anchor, pool, *request.learned)
    if choice.name == "means":
        return means(anchor, pool, selection, statistics)
    if choice.name == "cpu":
        factor = cast(float, cpu.constant_scale(statistics, selection))
        sums = cpu.request_sums(anchor, pool, selection, factor)
        return _apply(cpu.CPU, sums, plain_operands(anchor, pool), anchor, pool)
    if choice.prefix is not None:
        return (_prefix_in_kernels(choice.prefix, selection, statistics[0], choice.precision),)
    if not choice.groups:
        return _soft_in_kernels(source, anchor, pool, statistics, choice)
    return _in_kernels(source, anchor, pool, statistics, choice)


def _apply(
    engine: AnyEngine, request: Any, operands: Operands, anchor: Tensor, pool: Tensor, *learned: Tensor | None
) -> tuple[Tensor, ...]:
    values: tuple[Tensor, ...] = RowStatistics.apply(engine, request, operands, anchor, pool, *learned)
    return values


def _in_kernels(
    source: Source, anchor: Tensor, pool: Tensor, statistics: tuple[Statistic, ...], choice: EngineChoice
) -> tuple[Tensor, ...]:
    """Return statistics from kernels, in one pass for each exponent, or for two exponents that share an exponential."""
    engine, operands, common = _kernel_inputs(source, anchor, pool, choice)
    distinct = list({id(group): group for group in choice.groups if group is not None}.values())
    if len(distinct) == 2 and share_exponential(*distinct):
        one, two = distinct
        request = KernelRequest(one.phi, sums=TWO_TOTALS, times2=two.phi.times, **common)
        one.log_sum_exp, two.log_sum_exp = _apply(engine, request, operands, anchor, pool)
    else:
        for group in distinct:
            wants_expectation = group.expectation is not None
            request = KernelRequest(
                group.phi,
                # A learned factor's gradient is g · Σ s e^φ / Σ e^φ, so it needs the expectation as well.
                sums=TOTAL_AND_EXPECTATION if wants_expectation or group.learned is not None else TOTAL,
                fixed_weights=group.expectation is not None and group.expectation.detach,
                returns_expectation=wants_expectation,
                **common,
            )
            values = _apply(engine, request, operands, anchor, pool, group.learned)
            group.log_sum_exp, group.mean = (*values, None)[:2]
    selection = common["selection"]
    if selection.ceiling is not None and selection.ceiling.check is not None:
        assert distinct[0].log_sum_exp is not None
        selection.ceiling.check(distinct[0].log_sum_exp > -torch.inf)
    return tuple(
        selection.kept_counts(anchor.dtype) if group is None else group.value_of(statistic)
        for statistic, group in zip(statistics, choice.groups, strict=True)
    )


def _soft_in_kernels(
    source: Source, anchor: Tensor, pool: Tensor, statistics: tuple[Statistic, ...], choice: EngineChoice
) -> tuple[Tensor, ...]:
    """Return a log-sum-exp and a guide's soft sums, from kernels of their own, which are imported late."""
    from contrapose.reduce.tiled.launch import tile_width
    from contrapose.reduce.tiled.soft import SOFT, SoftRequest

    (_, soft), d = statistics, anchor.shape[1]
    assert isinstance(soft, SoftSums)
    phi, guide = exponent(soft.logit, len(anchor), anchor), soft.log_weights.guide_products()
    assert phi is not None
    assert guide is not None
    rows = kernel_operands(guide.anchor, guide.pool, choice.precision, None, tile_width(guide.anchor.shape[1]))
    request = SoftRequest(
        phi, cast(Selection, source.selection).contiguous(), choice.precision, d, rows, guide.temperature,
        guide.bound / (guide.temperature or 1.0), soft.with_entropy,
    )  # fmt: skip
    operands = kernel_operands(anchor, pool, choice.precision, source.kernel_inputs.bf16_anchor, tile_width(d))
    return _apply(SOFT, request, operands, anchor, pool, soft.logit.learned and phi.factor)


def _prefix_in_kernels(prefix: Prefix, selection: Selection, statistic: Statistic, precision: str) -> Tensor:
    """Return the log-sum-exps of one prefix, from kernels that compute those of all prefixes for the first one."""
    from contrapose.reduce.tiled.launch import tile_width
    from contrapose.reduce.tiled.prefixes import PREFIXES, PrefixRequest

    nested, d = prefix.nested, prefix.nested.anchor.shape[1]
    assert statistic.logit is not None
    phi = exponent(statistic.logit, len(nested.anchor), nested.anchor)
    assert phi is not None
    totals = nested.totals(phi.key, selection)
    if totals is None:
        request = PrefixRequest(phi, selection.contiguous(), precision, d, nested.widths)
        operands = kernel_operands(nested.anchor, nested.pool, precision, nested.bf16_anchor, tile_width(d))
        totals = _apply(PREFIXES, request, operands, nested.anchor, nested.pool)
        nested.computed.append((phi.key, selection, totals))
    return totals[prefix.index]


def _kernel_inputs(
    source: Source, anchor: Tensor, pool: Tensor, choice: EngineChoice
) -> tuple[AnyEngine, Operands, dict[str, Any]]:
    """Return the engine, its operands and what all its requests share; the engine is imported late, since it needs Triton."""
    engine, width = _kernel_engine(choice.name, anchor.shape[1])
    selection = cast(Selection, source.selection).contiguous()
    operands = kernel_operands(anchor, pool, choice.precision, source.kernel_inputs.bf16_anchor, width)
    hardest = None
    if selection.hardest is not None:
        from contrapose.reduce.hardest.thresholds import thresholds

        hardest = thresholds(operands.z, operands.p, selection, choice.precision)
    common = {
        "selection": selection, "precision": choice.precision, "width": anchor.shape[1], "hardest": hardest,
    }  # fmt: skip
    if selection.ceiling is not None and selection.ceiling.guide is not None:
        q, r = selection.ceiling.guide
        common["guide"] = kernel_operands(q, r, choice.precision, None, _kernel_engine("tiled", q.shape[1])[1])
    return engine, operands, common


def _kernel_engine(name: str, d: int) -> tuple[AnyEngine, int]:
    """Return an engine with kernels, and the width to which its operands are padded."""
    if name == "tiled":
        from contrapose.reduce.tiled.engine import TILED
        from contrapose.reduce.tiled.launch import tile_width

        return TILED, tile_width(d)
    from contrapose.reduce.fused.engine import FUSED

    return FUSED, max(16, 1 << (d - 1).bit_length())


def cross_entropy_of_views(source: Source, similarity: Tensor, logit: Logit) -> Tensor | None:
    """Return the mean cross-entropy of two views as one graph node; None if no engine can compute it this way.

    similarity   similarities to the positives, (n, 1)
    """
    choice = choose_one_node(source, similarity, logit, sigmoid=False)
    if choice is None:
        return None
    assert source.anchor is not None
    assert isinstance(logit, Scale)
    assert source.selection is not None
    anchor, scale = source.anchor, logit.factor
    if choice.name == "cpu":
        sums = cpu.request_sums(anchor, anchor, source.selection, cast(float, scale))
        return _loss_of_views(cpu.CPU, CrossEntropy(scale), sums, plain_operands(anchor, anchor), similarity, scale)
    engine, operands, common = _kernel_inputs(source, anchor, anchor, choice)
    phi = exponent(logit, len(anchor), anchor)
    assert phi is not None
    # Σ s e^φ / Σ e^φ is the gradient of the log-sum-exp with respect to the factor
    learns = isinstance(scale, Tensor) and scale.requires_grad
    request = KernelRequest(phi, sums=TOTAL_AND_EXPECTATION if learns else TOTAL, **common)
    head = CrossEntropy(scale if phi.factor is None else phi.factor.detach())
    return _loss_of_views(engine, head, request, operands, similarity, scale)


def sigmoid_loss_of_views(source: Source, similarity: Tensor, logit: Logit, bias: Number) -> Tensor | None:
    """Return the mean sigmoid loss of two views as one graph node; None if kernels do not apply."""
    choice = choose_one_node(source, similarity, logit, sigmoid=True)
    if choice is None:
        return None
    assert source.anchor is not None
    assert isinstance(logit, Scale)
    anchor, scale = source.anchor, logit.factor
    engine, request, operands = _sigmoid_inputs(source, anchor, anchor, Exponent(), choice.precision)
    numbers = _scale_and_bias(scale, bias, anchor).detach()
    return _loss_of_views(
        engine, Sigmoid(numbers), request, operands._replace(numbers=numbers), similarity, scale, bias
    )


def _loss_of_views(
    engine: AnyEngine, head: Head, request: Any, operands: Operands, similarity: Tensor, scale: Number, bias: Number | None = None
) -> Tensor:  # fmt: skip
    loss: Tensor = LossOfViews.apply(engine, head, request, operands, operands.anchor, similarity, scale, bias)
    return loss


def sum_rows(source: Source, statistic: SoftplusSum) -> Tensor:
    """Return the sum of a statistic over all anchors, a scalar: on a GPU its gradient comes from the same pass."""
    chosen, anchor, pool = choose_sum(source, statistic.logit), source.anchor, source.pool
    if chosen is None or anchor is None or pool is None:
        return reduce_rows(source, statistic)[0].sum()
    choice, phi = chosen
    numbers = _scale_and_bias(phi.times if phi.factor is None else phi.factor[0], statistic.bias, anchor)
    engine, request, operands = _sigmoid_inputs(source, anchor, pool, phi, choice.precision)
    operands = operands._replace(numbers=numbers.detach().contiguous())
    return _apply(engine, request, operands, anchor, pool, numbers)[0]


def _sigmoid_inputs(
    source: Source, anchor: Tensor, pool: Tensor, phi: Exponent, precision: str
) -> tuple[AnyEngine, Any, Operands]:
    """Return engine, request and operands for a sigmoid loss; the engine is imported late, since it needs Triton."""
    from contrapose.reduce.tiled.launch import tile_width
    from contrapose.reduce.tiled.sigmoid import SIGMOID, SigmoidRequest

    d = anchor.shape[1]
    request = SigmoidRequest(phi, cast(Selection, source.selection).contiguous(), precision, d)
    operands = kernel_operands(anchor, pool, precision, source.kernel_inputs.bf16_anchor, tile_width(d))
    return SIGMOID, request, operands


def _scale_and_bias(scale: Number, bias: Number, like: Tensor) -> Tensor:
    """Return scale and bias as one tensor (2,) on the device."""
    return torch.stack([x.to(like) if isinstance(x, Tensor) else like.new_full((), x) for x in (scale, bias)])
