# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""What a loss adds to the sums over negatives: each anchor's loss with its positive, and the derivatives, in one kernel.

In a batch of a few thousand the device waits for the host, where each of the half dozen operations would take as long as
this kernel. Imported only when used.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from contrapose.reduce.kernels import LN2, LOG2E
from contrapose.reduce.launch import launch, specialisation
from contrapose.reduce.tile_kernels import softplus_and_sigmoid

_ROWS = 256


@triton.jit
def _cross_entropy_kernel(
    log_sum_exp, similarity, factors, expectation, loss, weight, d_similarity, d_factor, n, factor, share,
    LEARNED: tl.constexpr, FAST: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < n
    if LEARNED:
        factor = tl.load(factors)
    s = tl.load(similarity + rows, inside, 0.0)
    gap = tl.load(log_sum_exp + rows, inside, 0.0) - factor * s
    value, sigmoid = softplus_and_sigmoid(gap * LOG2E, False, FAST)
    tl.store(loss + rows, value * (LN2 * share), inside)
    sigmoid *= share
    tl.store(weight + rows, sigmoid, inside)
    tl.store(d_similarity + rows, -factor * sigmoid, inside)
    if LEARNED:
        tl.store(d_factor + rows, sigmoid * (tl.load(expectation + rows, inside, 0.0) - s), inside)


@triton.jit
def _sigmoid_kernel(
    similarity, scale_and_bias, loss, d_similarity, d_scale, d_bias, n, FAST: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < n
    scale, bias = tl.load(scale_and_bias), tl.load(scale_and_bias + 1)
    s = tl.load(similarity + rows, inside, 0.0)
    value, sigmoid = softplus_and_sigmoid(-(scale * s + bias) * LOG2E, False, FAST)
    tl.store(loss + rows, value * LN2, inside)
    tl.store(d_similarity + rows, -sigmoid * scale, inside)
    tl.store(d_scale + rows, -sigmoid * s, inside)
    tl.store(d_bias + rows, -sigmoid, inside)


def cross_entropy(
    log_sum_exp: Tensor, similarity: Tensor, factor: float | Tensor, expectation: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return each anchor's share of the mean of log(1 + e^{lse - factor · s⁺}), and three derivatives of it, (n,) each.

    They are those with respect to the log-sum-exp, to s⁺ and to the factor. The last one needs `expectation`, the derivative of
    the log-sum-exp with respect to the factor, and is undefined without it.
    """
    n = similarity.shape[0]
    results = log_sum_exp.new_empty((4, n)).unbind()
    # Any tensor in place of one that the kernel does not read
    factors, number = (factor, 1.0) if isinstance(factor, Tensor) else (log_sum_exp, factor)
    buffers = log_sum_exp, similarity, factors, log_sum_exp if expectation is None else expectation, *results
    constants = {"LEARNED": isinstance(factor, Tensor), "FAST": similarity.is_cuda, "ROWS": _ROWS}
    launch(
        _cross_entropy_kernel, (-(-n // _ROWS), 1, 1),
        (*buffers, n, number, 1.0 / n), specialisation(buffers, (n,)), constants,
        near=similarity, warps=4, stages=1,
    )  # fmt: skip
    loss, weight, d_similarity, d_factor = results
    return loss, weight, d_similarity, d_factor


def sigmoid_loss(similarity: Tensor, scale_and_bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return softplus(-(scale · s⁺ + bias)), (n,), its derivative with respect to s⁺, and those to scale and bias, (2, n)."""
    n = similarity.shape[0]
    results = similarity.new_empty((4, n))
    buffers = similarity, scale_and_bias, *results.unbind()
    launch(
        _sigmoid_kernel, (-(-n // _ROWS), 1, 1), (*buffers, n), specialisation(buffers, (n,)),
        {"FAST": similarity.is_cuda, "ROWS": _ROWS}, near=similarity, warps=4, stages=1,
    )  # fmt: skip
    return results[0], results[1], results[2:]
