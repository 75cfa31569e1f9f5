# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Two views to unit vectors and their products in one Triton kernel each way. Imported only when it is used."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 2048  # coordinates of a view that a program holds


@triton.jit
def _forward_kernel(z, made, inverse, products, m, d, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    rows, along = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    first, inside = rows.to(tl.int64)[:, None] * d + along[None, :], (rows < m)[:, None] & (along < d)[None, :]
    second = (rows.to(tl.int64) + m)[:, None] * d + along[None, :]
    x, y = tl.load(z + first, inside, 0.0).to(tl.float32), tl.load(z + second, inside, 0.0).to(tl.float32)
    length_x, length_y = tl.sqrt_rn(tl.sum(x * x, 1)), tl.sqrt_rn(tl.sum(y * y, 1))
    inverse_x, inverse_y = (
        tl.where(length_x > 1e-12, 1.0 / length_x, 0.0),
        tl.where(length_y > 1e-12, 1.0 / length_y, 0.0),
    )
    x, y = x * inverse_x[:, None], y * inverse_y[:, None]
    tl.store(made + first, x, inside)
    tl.store(made + second, y, inside)
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


def _shape(z: Tensor) -> tuple[tuple[int], dict[str, int], int, int]:
    _, m, d = z.shape
    width = max(16, 1 << (d - 1).bit_length())
    rows = max(1, _TILE // width)
    return (-(-m // rows),), {"ROWS": rows, "WIDTH": width, "num_warps": 4}, m, d


def forward(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(2, m, d) -> unit vectors in float32, inverse lengths (2, m, 1) and products with the other view (2 · m, 1)."""
    grid, constants, m, d = _shape(z)
    z, made = z.contiguous(), z.new_empty(z.shape, dtype=torch.float32)
    inverse, products = (made.new_empty(shape) for shape in ((2, m, 1), (2 * m, 1)))
    with torch.cuda.device_of(z):
        _forward_kernel[grid](z, made, inverse, products, m, d, **constants)
    return made, inverse, products


def backward(
    gradient: Tensor | None, of_products: Tensor | None, made: Tensor, inverse: Tensor, dtype: torch.dtype
) -> Tensor:
    """The gradient of z from those of its unit vectors and products."""
    grid, constants, m, d = _shape(made)
    out = torch.empty_like(made, dtype=dtype)
    given: list[Any] = [made if x is None else x.contiguous() for x in (gradient, of_products)]
    flags = {"GRADIENT": gradient is not None, "PRODUCTS": of_products is not None}
    with torch.cuda.device_of(made):
        _backward_kernel[grid](*given, made, inverse, out, m, d, **flags, **constants)
    return out
