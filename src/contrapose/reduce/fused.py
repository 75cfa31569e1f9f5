"""Log-sum-exps of similarities in Triton kernels that never store a similarity. Imported only when it is used.

A program owns some rows and walks over the columns. In the backward pass it recomputes the similarities and keeps the rows'
gradient in registers: no atomics, the same bits each time. Where pool and anchors are the same tensor, one pass gives both
halves of the gradient: dZ_i = Σ_j (g_i w_ij + g_j w_ji) z_j.

Similarities of unit vectors are at most 1, so while φ stays below 40 a constant takes the place of a running maximum, and
e^φ is common to w_ij and w_ji: one exponential for each similarity, in each pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton
from torch import Tensor

from contrapose.reduce.kernels import backward_kernel, forward_kernel
from contrapose.reduce.logit import Divided, Scale
from contrapose.reduce.statistics import LogSumExp, Statistic

WIDEST = 256  # of embeddings: beyond that a row's gradient does not fit in registers
_SCALE, _COSINE, _LINEAR = range(3)
_STEEPEST = 40.0  # |φ| up to which e^{φ-max} and e^{max-lse} are float32 numbers


@dataclass(frozen=True)
class Exponent:
    """φ(s) as a kernel knows it: s · factor, or s / τ(s)."""

    kind: int
    factor: Tensor  # (n,), or (1,) where it is the same for all
    low: float = 0.0
    span: float = 0.0
    detach: bool = True
    most: float = math.inf  # φ is nowhere above it; infinite where nobody knows

    @property
    def shared(self) -> bool:
        """Whether all rows have the same φ, and one that is flat enough."""
        return self.most <= _STEEPEST


def exponent(statistic: Statistic, anchors: int, like: Tensor) -> Exponent | None:
    """The exponent of a log-sum-exp, or None where no kernel knows it."""
    if not isinstance(statistic, LogSumExp):
        return None
    logit = statistic.logit
    if isinstance(logit, Scale):
        if logit.learned is not None:
            return None
        if isinstance(logit.factor, Tensor):
            factor = logit.factor.to(like.device, torch.float32)
            return Exponent(_SCALE, factor.expand(anchors).contiguous())
        steep = abs(logit.factor) > _STEEPEST
        factor = like.new_full((anchors if steep else 1,), logit.factor, dtype=torch.float32)
        return Exponent(_SCALE, factor, logit.factor, most=abs(logit.factor))
    if isinstance(logit, Divided) and logit.factor == 1.0:
        profile: Any = logit.temperature
        # By name: profiles stand a layer above this one.
        kind = {"Cosine": _COSINE, "Linear": _LINEAR}.get(type(profile).__name__)
        if kind is not None:
            low, span = profile.low, profile.high - profile.low
            return Exponent(kind, like.new_zeros(1), low, span, profile.detach, _most(kind, low, span))
    return None


@lru_cache
def _most(kind: int, low: float, span: float) -> float:
    """The largest s/τ(s), with room for what lies between the points."""
    shape = (lambda s: math.sin(math.pi * s / 2) ** 2) if kind == _COSINE else (lambda s: s)
    return 1.01 * max(s / (low + span * shape(s)) for s in (k / 500 for k in range(501)))


def log_sum_exp(
    anchor: Tensor, pool: Tensor, anchor_id: Tensor, pool_id: Tensor, phi: Exponent, precision: str = "ieee"
) -> Tensor:
    """log Σ_j e^{φ(s_ij)} over the pool rows with another id, (n,) in float32, with gradients to anchor and pool.

    precision   of the products: "ieee" float32, "tf32", or "bf16" inputs; sums are always float32
    """
    found: Tensor = _LogSumExp.apply(anchor, pool, anchor_id, pool_id, phi, precision)
    return found


def _same(anchor: Tensor, pool: Tensor) -> bool:
    return anchor.data_ptr() == pool.data_ptr() and anchor.shape == pool.shape and anchor.stride() == pool.stride()


class _LogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, pool: Tensor, anchor_id: Tensor, pool_id: Tensor, phi: Exponent, precision: str
    ) -> Tensor:
        same, dtype = _same(anchor, pool), torch.bfloat16 if precision == "bf16" else torch.float32
        anchor = anchor.to(dtype).contiguous()
        pool = anchor if same else pool.to(dtype).contiguous()
        ids = anchor_id.contiguous(), pool_id.contiguous()
        out = anchor.new_empty(len(anchor), dtype=torch.float32)
        _launch(forward_kernel, (anchor, pool, *ids, phi.factor, out), phi, precision)
        ctx.save_for_backward(anchor, pool, *ids, out)
        ctx.phi, ctx.precision = phi, precision
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True
            raise RuntimeError("first derivatives only: losses of embeddings have no second derivative here")
        anchor, pool, anchor_id, pool_id, lse = ctx.saved_tensors
        phi, upstream = ctx.phi, gradients[0].float().contiguous()
        if phi.shared:
            upstream = upstream * torch.exp(phi.most - lse.masked_fill(lse == -torch.inf, phi.most))
        wants_anchor, wants_pool, *_ = ctx.needs_input_grad
        both = wants_anchor and wants_pool and _same(anchor, pool)
        d_anchor = d_pool = None
        if wants_anchor:
            d_anchor = torch.empty_like(anchor, dtype=torch.float32)
            buffers = (anchor, pool, anchor_id, pool_id, phi.factor, lse, upstream, d_anchor)
            _launch(backward_kernel, buffers, phi, ctx.precision, OWN=True, OTHER=both)
        if wants_pool and not both:
            d_pool = torch.empty_like(pool, dtype=torch.float32)
            buffers = (pool, anchor, pool_id, anchor_id, phi.factor, lse, upstream, d_pool)
            _launch(backward_kernel, buffers, phi, ctx.precision, OWN=False, OTHER=True)
        return d_anchor, d_pool, None, None, None, None


# (rows, columns, warps, stages) of a tile, measured on an H200 at d = 128: forward, backward.
_TILES = {"bf16": ((128, 64, 4, 3), (64, 128, 4, 2)), "tf32": ((128, 32, 4, 3), (128, 128, 8, 2))}
_FLAT = (128, 128, 4, 2)  # bf16 forward of a plain scale
_PLAIN = ((64, 64, 4, 2), (64, 32, 4, 2))


def _launch(kernel: Any, buffers: tuple[Tensor, ...], phi: Exponent, precision: str, **more: Any) -> None:
    (n, d), m = buffers[0].shape, len(buffers[1])
    width = max(16, triton.next_power_of_2(d))
    tiles = _TILES.get(precision, _PLAIN) if width <= 128 else _PLAIN
    if precision == "bf16" and phi.kind == _SCALE and phi.shared and width == 128:
        tiles = (_FLAT, tiles[1])
    rows, columns, warps, stages = tiles[kernel is backward_kernel]
    kernel[(triton.cdiv(n, rows),)](
        *buffers, n, m, d, phi.low, phi.span, phi.most if phi.shared else 0.0, SHARED=phi.shared, KIND=phi.kind,
        DETACH=phi.detach, ROWS=rows, COLUMNS=columns, WIDTH=width, PRECISION="ieee" if precision == "bf16" else precision,
        num_warps=warps, num_stages=stages, **more,
    )  # fmt: skip
