# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Two views to unit vectors and their products in one Triton kernel each way. Imported only when it is used."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from contrapose.reduce.hardware import is_half, on_device

_TILE = 2048  # coordinates of a view that a program holds


@triton.jit
def _forward_kernel(
    z1, z2, made, rounded, inverse, products, m, d, ROUND: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    rows, along = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    first, inside = rows.to(tl.int64)[:, None] * d + along[None, :], (rows < m)[:, None] & (along < d)[None, :]
    second = (rows.to(tl.int64) + m)[:, None] * d + along[None, :]
    x, y = tl.load(z1 + first, inside, 0.0).to(tl.float32), tl.load(z2 + first, inside, 0.0).to(tl.float32)
    length_x, length_y = tl.sqrt_rn(tl.sum(x * x, 1)), tl.sqrt_rn(tl.sum(y * y, 1))
    inverse_x, inverse_y = (
        tl.where(length_x > 1e-12, 1.0 / length_x, 0.0),
        tl.where(length_y > 1e-12, 1.0 / length_y, 0.0),
    )
    x, y = x * inverse_x[:, None], y * inverse_y[:, None]
    tl.store(made + first, x, inside)
    tl.store(made + second, y, inside)
    if ROUND:
        tl.store(rounded + first, x.to(tl.bfloat16), inside)
        tl.store(rounded + second, y.to(tl.bfloat16), inside)
    tl.store(inverse + rows, inverse_x, rows < m)
    tl.store(inverse + m + rows, inverse_y, rows < m)
    both = tl.sum(x * y, 1)
    tl.store(products + rows, both, rows < m)
    tl.store(products + m + rows, both, rows < m)


@triton.jit
def _backward_kernel(
    gradient, of_products, made, inverse, out, m, d,
    GRADIENT: tl.constexpr, PRODUCTS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    rows, along = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    first, inside = rows.to(tl.int64)[:, None] * d + along[None, :], (rows < m)[:, None] & (along < d)[None, :]
    second = (rows.to(tl.int64) + m)[:, None] * d + along[None, :]
    x, y = tl.load(made + first, inside, 0.0), tl.load(made + second, inside, 0.0)
    moved_x, moved_y = tl.zeros((ROWS, WIDTH), tl.float32), tl.zeros((ROWS, WIDTH), tl.float32)
    if GRADIENT:
        moved_x, moved_y = tl.load(gradient + first, inside, 0.0), tl.load(gradient + second, inside, 0.0)
    if PRODUCTS:
        both = tl.load(of_products + rows, rows < m, 0.0) + tl.load(of_products + m + rows, rows < m, 0.0)
        moved_x, moved_y = moved_x + both[:, None] * y, moved_y + both[:, None] * x
    moved_x -= tl.sum(moved_x * x, 1)[:, None] * x
    moved_y -= tl.sum(moved_y * y, 1)[:, None] * y
    moved_x *= tl.load(inverse + rows, rows < m, 0.0)[:, None]
    moved_y *= tl.load(inverse + m + rows, rows < m, 0.0)[:, None]
    tl.store(out + first, moved_x.to(out.dtype.element_ty), inside)
    tl.store(out + second, moved_y.to(out.dtype.element_ty), inside)


def _shape(m: int, d: int) -> tuple[tuple[int], dict[str, int]]:
    width = max(16, 1 << (d - 1).bit_length())
    rows = max(1, _TILE // width)
    return (-(-m // rows),), {"ROWS": rows, "WIDTH": width, "num_warps": 4}


def forward(z1: Tensor, z2: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Two views (m, d): unit vectors (2, m, d) in float32, inverse lengths (2, m, 1), products with the other view (2 · m, 1).

    Last, for embeddings in half precision, the unit vectors in bf16.
    """
    m, d = z1.shape
    grid, constants = _shape(m, d)
    made = z1.new_empty((2, m, d), dtype=torch.float32)
    rounded = torch.empty_like(made, dtype=torch.bfloat16) if is_half(z1) else None
    inverse, products = made.new_empty((2, m, 1)), made.new_empty((2 * m, 1))
    with on_device(z1):
        _forward_kernel[grid](
            z1.contiguous(), z2.contiguous(), made, made if rounded is None else rounded, inverse, products, m, d,
            ROUND=rounded is not None, **constants,
        )  # fmt: skip
    return made, inverse, products, rounded


def backward(
    gradient: Tensor | None, of_products: Tensor | None, made: Tensor, inverse: Tensor, dtype: torch.dtype
) -> Tensor:
    """The gradient of the views (2, m, d) from those of their unit vectors and products."""
    _, m, d = made.shape
    grid, constants = _shape(m, d)
    out = torch.empty_like(made, dtype=dtype)
    given: list[Any] = [made if x is None else x.contiguous() for x in (gradient, of_products)]
    flags = {"GRADIENT": gradient is not None, "PRODUCTS": of_products is not None}
    with on_device(made):
        _backward_kernel[grid](*given, made, inverse, out, m, d, **flags, **constants)
    return out
