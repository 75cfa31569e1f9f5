# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Combine sums over negatives with the positives: each anchor's loss and its derivatives, in one kernel.

With a few thousand samples the GPU waits for the CPU, where each of half a dozen separate operations would take as long as
this kernel. Imported only when used.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from contrapose.reduce.kernel_launch import launch_kernel, specialisation
from contrapose.reduce.kernel_math import LN2, LOG2E, softplus_and_sigmoid

_ROWS = 256


@triton.jit
def _cross_entropy_kernel(
    log_sum_exp, similarity, factors, out, n, factor, share,
    LEARNED: tl.constexpr, FAST: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < n
    if LEARNED:
        factor = tl.load(factors)
    s = tl.load(similarity + rows, inside, 0.0)
    gap = tl.load(log_sum_exp + rows, inside, 0.0) - factor * s
    value, sigmoid = softplus_and_sigmoid(gap * LOG2E, False, FAST)
    tl.store(out + rows, value * (LN2 * share), inside)
    sigmoid *= share
    tl.store(out + n + rows, sigmoid, inside)
    tl.store(out + 2 * n + rows, -factor * sigmoid, inside)
    if LEARNED:
        tl.store(out + 3 * n + rows, -sigmoid * s, inside)


@triton.jit
def _sigmoid_kernel(
    similarity, scale_and_bias, out, n, share, FAST: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < n
    scale, bias = tl.load(scale_and_bias), tl.load(scale_and_bias + 1)
    s = tl.load(similarity + rows, inside, 0.0)
    value, sigmoid = softplus_and_sigmoid(-(scale * s + bias) * LOG2E, False, FAST)
    tl.store(out + rows, value * LN2 * share, inside)
    sigmoid *= share
    tl.store(out + n + rows, tl.zeros((ROWS,), tl.float32) + share, inside)
    tl.store(out + 2 * n + rows, -sigmoid * scale, inside)
    tl.store(out + 3 * n + rows, -sigmoid * s, inside)
    tl.store(out + 4 * n + rows, -sigmoid, inside)


def cross_entropy(log_sum_exp: Tensor, similarity: Tensor, factor: float | Tensor) -> Tensor:
    """Return each anchor's share of the mean of log(1 + e^{lse - factor · s⁺}), and of its derivatives: (rows, n).

    The derivatives are with respect to lse, s⁺ and, if it is a tensor, the factor.
    """
    n, learned = similarity.shape[0], isinstance(factor, Tensor)
    out = log_sum_exp.new_empty((4 if learned else 3, n))
    # Any tensor can replace one that the kernel does not read
    factors, number = (factor, 1.0) if isinstance(factor, Tensor) else (log_sum_exp, factor)
    buffers = log_sum_exp, similarity, factors, out
    launch_kernel(
        _cross_entropy_kernel, (-(-n // _ROWS), 1, 1),
        (*buffers, n, number, 1.0 / n), specialisation(buffers, (n,)),
        {"LEARNED": learned, "FAST": similarity.is_cuda, "ROWS": _ROWS}, near=similarity, warps=4, stages=1,
    )  # fmt: skip
    return out


def sigmoid_loss(similarity: Tensor, scale_and_bias: Tensor) -> Tensor:
    """Return each anchor's share of the mean of softplus(-(scale · s⁺ + bias)), and of derivatives: (rows, n).

    The derivatives are with respect to the sum over negatives (1 / n), s⁺, scale and bias.
    """
    n = similarity.shape[0]
    out = similarity.new_empty((5, n))
    buffers = similarity, scale_and_bias, out
    launch_kernel(
        _sigmoid_kernel, (-(-n // _ROWS), 1, 1), (*buffers, n, 1.0 / n), specialisation(buffers, (n,)),
        {"FAST": similarity.is_cuda, "ROWS": _ROWS}, near=similarity, warps=4, stages=1,
    )  # fmt: skip
    return out
