# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Unit vectors of two views and their products in one Triton kernel for each direction. Imported only when used."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from contrapose.reduce.hardware import is_half
from contrapose.reduce.kernel_launch import launch_kernel, specialisation

_TILE = 2048  # number of coordinates of a view that a program holds


@triton.jit
def _scale(sum_of_squares):
    return tl.where(sum_of_squares == float("inf"), 8.271806125530277e-25, 1.0)


@triton.jit
def _forward_kernel(
    z1, z2, unit_vectors, rounded, inverse, products, m, d, ROUND: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    rows, coordinates = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    first, inside = (
        rows.to(tl.int64)[:, None] * d + coordinates[None, :],
        (rows < m)[:, None] & (coordinates < d)[None, :],
    )
    second = (rows.to(tl.int64) + m)[:, None] * d + coordinates[None, :]
    x, y = tl.load(z1 + first, inside, 0.0).to(tl.float32), tl.load(z2 + first, inside, 0.0).to(tl.float32)
    # A row whose squares overflow is scaled by 2^-80; any other is multiplied by 1, which changes no bit.
    scale_x, scale_y = _scale(tl.sum(x * x, 1)), _scale(tl.sum(y * y, 1))
    x, y = x * scale_x[:, None], y * scale_y[:, None]
    # sqrt_rn rounds to nearest, as torch does; tl.sqrt is approximate.
    length_x, length_y = tl.sqrt_rn(tl.sum(x * x, 1)), tl.sqrt_rn(tl.sum(y * y, 1))
    inverse_x, inverse_y = (
        tl.where(length_x > 1e-12, 1.0 / length_x, 0.0),
        tl.where(length_y > 1e-12, 1.0 / length_y, 0.0),
    )
    x, y = x * inverse_x[:, None], y * inverse_y[:, None]
    tl.store(unit_vectors + first, x, inside)
    tl.store(unit_vectors + second, y, inside)
    if ROUND:
        tl.store(rounded + first, x.to(tl.bfloat16), inside)
        tl.store(rounded + second, y.to(tl.bfloat16), inside)
    # The inverse length of the row before scaling; the gradient is multiplied by it.
    tl.store(inverse + rows, inverse_x * scale_x, rows < m)
    tl.store(inverse + m + rows, inverse_y * scale_y, rows < m)
    similarity = tl.sum(x * y, 1)
    tl.store(products + rows, similarity, rows < m)
    tl.store(products + m + rows, similarity, rows < m)


@triton.jit
def _backward_kernel(
    gradient, product_gradient, unit_vectors, inverse, out, m, d,
    GRADIENT: tl.constexpr, PRODUCTS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    rows, coordinates = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    first, inside = (
        rows.to(tl.int64)[:, None] * d + coordinates[None, :],
        (rows < m)[:, None] & (coordinates < d)[None, :],
    )
    second = (rows.to(tl.int64) + m)[:, None] * d + coordinates[None, :]
    x, y = tl.load(unit_vectors + first, inside, 0.0), tl.load(unit_vectors + second, inside, 0.0)
    gradient_x, gradient_y = tl.zeros((ROWS, WIDTH), tl.float32), tl.zeros((ROWS, WIDTH), tl.float32)
    if GRADIENT:
        gradient_x, gradient_y = tl.load(gradient + first, inside, 0.0), tl.load(gradient + second, inside, 0.0)
    if PRODUCTS:
        # Each product is stored for both views, so both gradients add up.
        both = tl.load(product_gradient + rows, rows < m, 0.0) + tl.load(product_gradient + m + rows, rows < m, 0.0)
        gradient_x, gradient_y = gradient_x + both[:, None] * y, gradient_y + both[:, None] * x
    # Through the normalisation: remove the radial component, divide by the length.
    gradient_x -= tl.sum(gradient_x * x, 1)[:, None] * x
    gradient_y -= tl.sum(gradient_y * y, 1)[:, None] * y
    inverse_x, inverse_y = tl.load(inverse + rows, rows < m, 0.0), tl.load(inverse + m + rows, rows < m, 0.0)
    gradient_x *= inverse_x[:, None]
    gradient_y *= inverse_y[:, None]
    tl.store(out + first, gradient_x.to(out.dtype.element_ty), inside)
    tl.store(out + second, gradient_y.to(out.dtype.element_ty), inside)


def _launch_shape(m: int, d: int) -> tuple[tuple[int, int, int], dict[str, int]]:
    """Return the grid, and the compile-time arguments."""
    width = max(16, 1 << (d - 1).bit_length())
    rows = max(1, _TILE // width)
    return (-(-m // rows), 1, 1), {"ROWS": rows, "WIDTH": width}


def forward(z1: Tensor, z2: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Normalise two views, (m, d) each.

    Return unit vectors (2 · m, d) in float32, inverse lengths (2 · m,), products with the other view (2 · m, 1) and,
    for embeddings in half precision, the unit vectors in bf16 (otherwise None).
    """
    m, d = z1.shape
    grid, constants = _launch_shape(m, d)
    unit_vectors = z1.new_empty((2 * m, d), dtype=torch.float32)
    rounded = torch.empty_like(unit_vectors, dtype=torch.bfloat16) if is_half(z1) else None
    inverse, products = unit_vectors.new_empty(2 * m), unit_vectors.new_empty((2 * m, 1))
    buffers = (
        z1.contiguous(), z2.contiguous(), unit_vectors, unit_vectors if rounded is None else rounded, inverse, products,
    )  # fmt: skip
    launch_kernel(
        _forward_kernel, grid, (*buffers, m, d), specialisation(buffers, (m, d)),
        {"ROUND": rounded is not None, **constants}, near=z1, warps=4, stages=1,
    )  # fmt: skip
    return unit_vectors, inverse, products, rounded


def backward(
    gradient: Tensor | None,
    product_gradient: Tensor | None,
    unit_vectors: Tensor,
    inverse: Tensor,
    *,
    dtype: torch.dtype,
) -> Tensor:
    """Return the gradient of the views, (2, m, d), from the gradients of their unit vectors and products (None: zero)."""
    m, d = unit_vectors.shape[0] // 2, unit_vectors.shape[1]
    grid, constants = _launch_shape(m, d)
    out = unit_vectors.new_empty((2, m, d), dtype=dtype)
    # A missing gradient is replaced by any tensor: its flag keeps the kernel from reading it.
    inputs: list[Any] = [unit_vectors if x is None else x.contiguous() for x in (gradient, product_gradient)]
    flags = {"GRADIENT": gradient is not None, "PRODUCTS": product_gradient is not None}
    buffers = (*inputs, unit_vectors, inverse, out)
    launch_kernel(
        _backward_kernel, grid, (*buffers, m, d), specialisation(buffers, (m, d)), flags | constants, near=unit_vectors,
        warps=4, stages=1,
    )  # fmt: skip
    return out
