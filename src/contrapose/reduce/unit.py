"""Unit vectors and their row-wise products, with operations that save no copies of embeddings for the backward pass."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from contrapose.reduce.derivatives import refuse_second_derivative, refuse_transforms
from contrapose.reduce.hardware import has_kernels, is_half
from contrapose.validate import values_may_be_read

_EPSILON = 1e-12
# Scale factors for vectors whose squares overflow: after scaling, no square overflows, and none that matters underflows.
_SCALES = {torch.float32: 2.0**-80, torch.float64: 2.0**-600}
_MAX_KERNEL_WIDTH = 2048  # number of coordinates per row that a kernel can hold in registers
_CHUNK = 2**20  # coordinates multiplied at a time, so that elementwise products take little memory
_CONTIGUOUS = torch.contiguous_format


def unit(z: Tensor) -> Tensor:
    """Return z / ‖z‖ along the last dimension, in float32 or better. Embeddings are normalised here and nowhere else.

    A vector shorter than 1e-12 becomes zero and gets no gradient, since it has no direction. A vector so long that its
    squared coordinates overflow is scaled first.

    z   embeddings (…, d)

    >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    refuse_transforms()
    unit_vectors: Tensor = _Unit.apply(z)
    return unit_vectors


def units(*embeddings: Tensor) -> list[Tensor]:
    """Return unit vectors in the highest precision among the embeddings."""
    # Keyed by identity, so that the same tensor passed twice stays one tensor: reductions check for this.
    normalised = {key: unit(z) for key, z in {id(z): z for z in embeddings}.items()}
    dtype = reduce(torch.promote_types, (z.dtype for z in normalised.values()))
    normalised = {key: z.to(dtype) for key, z in normalised.items()}
    return [normalised[id(z)] for z in embeddings]


def full_precision(like: Tensor) -> torch.autocast:
    """Return a context without autocast: dividing by a low temperature would magnify the errors of bf16 products."""
    return torch.autocast(like.device.type, enabled=False)


def same_tensor(a: Tensor, b: Tensor) -> bool:
    """Return whether a and b are the same memory."""
    # Not `a is b`: autograd passes other objects for the same tensor to a Function.
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape


def matmul(a: Tensor, b: Tensor, *, bf16: bool = False) -> Tensor:
    """Return a @ b in full precision; with `bf16` on a GPU, round the factors to bf16 (float32 sums, no autograd)."""
    if bf16 and a.is_cuda and a.dtype == torch.float32:
        return torch.mm(a.bfloat16(), b.bfloat16(), out_dtype=torch.float32)
    with full_precision(a):
        return a @ b


def products(anchor: Tensor, positive: Tensor) -> Tensor:
    """Return a_i · p_ik, (n, k), for anchors (n, d) and positives (n, k, d)."""
    with full_precision(anchor):
        return (anchor[:, None] * positive).sum(-1)


def squared_distances(anchor: Tensor, positive: Tensor) -> Tensor:
    """Return ‖a_i - p_ik‖², (n, k), for anchors (n, d) and positives (n, k, d)."""
    # Not 2 - 2s: in float32 its error is 1e-7, as large as the squared distance of vectors 3e-4 apart.
    return (anchor[:, None] - positive).square().sum(-1)


def squared_view_distances(z: Tensor) -> Tensor:
    """Return each row's squared distances to its row in the views after it, cyclically: (V, m, d) -> (V · m, V - 1)."""
    views = len(z)
    # Each distance is computed once, for both of its views.
    between = {(v, w): (z[v] - z[w]).square().sum(-1) for v, w in _view_pairs(views)}
    after = [[(v + step) % views for step in range(1, views)] for v in range(views)]
    return torch.cat([torch.stack([between[min(v, w), max(v, w)] for w in after[v]], 1) for v in range(views)])


def unit_views(*views: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return unit vectors (V · m, d) of V views, and each row's products with its row in other views, (V · m, V - 1).

    Pass the views one by one, (m, d) each, or as one tensor (V, m, d). Unit vectors and products are one operation, so that
    the backward pass holds one gradient of the embeddings instead of two. The third result is the unit vectors in bf16 if
    kernels computed them and the embeddings are in half precision.
    """
    refuse_transforms()
    unit_vectors, similarity, rounded = _UnitViews.apply(*views)
    return unit_vectors, similarity, rounded


def _chunks(rows: int, width: int) -> Iterator[slice]:
    step = max(1, _CHUNK // width)
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def _row_products(a: Tensor, b: Tensor) -> Tensor:
    """Return a_i · b_i, (n,), for rows (n, d)."""
    if a.numel() <= _CHUNK:
        return (a * b).sum(-1)
    return torch.cat([(a[rows] * b[rows]).sum(-1) for rows in _chunks(*a.shape)])


def _inverse_length(z: Tensor) -> Tensor:
    """Return 1 / ‖z‖ in float32 or better, 0 for a vector without direction."""
    dtype = torch.float32 if is_half(z) else z.dtype
    if z.is_cuda and dtype == torch.float32:
        # In float64 no square of a float32 number overflows, and the pass takes no longer, since it is bound by memory.
        return _reciprocal(torch.linalg.vector_norm(z, dim=-1, keepdim=True, dtype=torch.float64)).to(dtype)
    length = torch.linalg.vector_norm(z, dim=-1, keepdim=True, dtype=dtype)
    inverse = _reciprocal(length)
    if not _may_overflow(length):
        return inverse
    scaled = torch.linalg.vector_norm(z * _SCALES[dtype], dim=-1, keepdim=True, dtype=dtype)
    return torch.where(length == torch.inf, _SCALES[dtype] / scaled, inverse)


def _reciprocal(length: Tensor) -> Tensor:
    # A length below ε becomes inf, whose reciprocal is 0: no branch, and no division by zero.
    return torch.threshold(length, _EPSILON, torch.inf).reciprocal_()


def _may_overflow(length: Tensor) -> bool:
    """Return whether a length may be infinite: always, unless it can be read without waiting for a device."""
    return not (is_free_to_read(length) and math.isfinite(float(length.sum())))


def is_free_to_read(tensor: Tensor) -> bool:
    """Return whether a tensor's values can be read without waiting for a device."""
    return tensor.device.type == "cpu" and values_may_be_read(tensor) and not is_in_torch_dispatch_mode()


def _normalisation_backward_(gradient: Tensor, unit_vectors: Tensor, inverse: Tensor) -> Tensor:
    """Overwrite the gradient g of unit vectors u by that of z, (g - (g · u) u) / ‖z‖, and return it."""
    flat, d = unit_vectors.reshape(-1, unit_vectors.shape[-1]), unit_vectors.shape[-1]
    radial = _row_products(gradient.view(-1, d), flat)[:, None]
    gradient.view(-1, d).addcmul_(flat, radial, value=-1.0)
    return gradient.mul_(inverse)


class _Unit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        inverse = _inverse_length(z)
        unit_vectors = z * inverse
        ctx.save_for_backward(unit_vectors, inverse)
        ctx.dtype = z.dtype
        return unit_vectors

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        refuse_second_derivative()
        # A copy, since autograd may pass the same gradient to others; contiguous, since it is viewed as rows.
        d_embeddings = gradient.clone(memory_format=_CONTIGUOUS)
        return _normalisation_backward_(d_embeddings, *ctx.saved_tensors).to(ctx.dtype)


class _UnitViews(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *views: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        ctx.dtypes = [z.dtype for z in views]
        # A missing gradient stays None and is not filled with zeros: a loss may use only the products.
        ctx.set_materialize_grads(False)
        pair = (views[0][0], views[0][1]) if len(views) == 1 and len(views[0]) == 2 else views
        ctx.in_kernels = _fit_kernels(pair)
        if ctx.in_kernels:
            from contrapose.reduce import unit_kernels

            unit_vectors, inverse, similarity, rounded = unit_kernels.forward(*pair)
            if rounded is not None:
                ctx.mark_non_differentiable(rounded)
            ctx.save_for_backward(unit_vectors, inverse)
            return unit_vectors, similarity, rounded
        z = views[0] if len(views) == 1 else torch.stack(views)
        inverse = _inverse_length(z)
        # The copy of the views is no longer needed, and is overwritten.
        unit_vectors = z.mul_(inverse) if len(views) > 1 and z.dtype == inverse.dtype else z * inverse
        ctx.save_for_backward(unit_vectors, inverse)
        # Flattened here instead of by the caller, which saves one graph node.
        return unit_vectors.flatten(0, 1), _view_products(unit_vectors), None

    @staticmethod
    def backward(
        ctx: Any, gradient: Tensor | None, product_gradient: Tensor | None, _: Tensor | None
    ) -> Tensor | tuple[Tensor, ...]:
        refuse_second_derivative()
        unit_vectors, inverse = ctx.saved_tensors
        if ctx.in_kernels:
            from contrapose.reduce import unit_kernels

            d_views = unit_kernels.backward(gradient, product_gradient, unit_vectors, inverse, dtype=ctx.dtypes[0])
            return d_views if len(ctx.dtypes) == 1 else d_views.unbind()
        # A copy, since autograd may pass the same gradient to others.
        d_unit = None if gradient is None else gradient.view(unit_vectors.shape).clone(memory_format=_CONTIGUOUS)
        d_views = _views_backward_(d_unit, product_gradient, unit_vectors, inverse)
        if len(ctx.dtypes) == 1:
            return d_views.to(ctx.dtypes[0])
        return tuple(part.to(dtype) for part, dtype in zip(d_views, ctx.dtypes, strict=True))


def _views_backward_(
    gradient: Tensor | None, product_gradient: Tensor | None, unit_vectors: Tensor, inverse: Tensor
) -> Tensor:
    """Return the gradient of views (V, m, d), written over that of their unit vectors (None: zero).

    gradient           of the unit vectors, (V, m, d)
    product_gradient   of the products of `unit_views`, (V · m, V - 1); None: zero
    inverse            inverse lengths of the views, (V, m, 1)
    """
    total = torch.zeros_like(unit_vectors, memory_format=_CONTIGUOUS) if gradient is None else gradient
    if product_gradient is not None:
        _add_view_products_backward(total, product_gradient, unit_vectors)
    return _normalisation_backward_(total, unit_vectors, inverse)


def _view_products(z: Tensor) -> Tensor:
    """Return each row's products with its row in the views after it, cyclically: (V, m, d) -> (V · m, V - 1)."""
    views, m, _ = z.shape
    if views == 2:
        first, second = z.unbind()
        return _row_products(first, second).expand(2, m).reshape(2 * m, 1)
    products = z.new_empty((views, m, views - 1))
    for v, w in _view_pairs(views):  # each product is computed once, for both of its views
        products[v, :, w - v - 1] = products[w, :, (v - w) % views - 1] = _row_products(z[v], z[w])
    return products.flatten(0, 1)


def _add_view_products_backward(total: Tensor, product_gradient: Tensor, z: Tensor) -> None:
    """Add to `total` the gradient of unit vectors z, (V, m, d), through their products."""
    views, m, _ = z.shape
    product_gradient = product_gradient.reshape(views, m, views - 1)
    if views == 2:
        both = product_gradient.sum(0)
        for d_view, other in zip(total.unbind(), reversed(z.unbind()), strict=True):
            d_view.addcmul_(other, both)
        return
    for v, w in _view_pairs(views):
        both = (product_gradient[v, :, w - v - 1] + product_gradient[w, :, (v - w) % views - 1])[:, None]
        total[v].addcmul_(z[w], both)
        total[w].addcmul_(z[v], both)


def _fit_kernels(views: tuple[Tensor, ...]) -> bool:
    """Return whether kernels apply: two views on a GPU whose rows fit in registers."""
    # At this size kernel launches take most of the time, and these kernels need only one.
    z = views[0]
    compatible = len(views) == 2 and views[1].dtype == z.dtype != torch.float64 and views[1].device == z.device
    return compatible and z.is_cuda and z.shape[1] <= _MAX_KERNEL_WIDTH and has_kernels(z.device)


def _view_pairs(views: int) -> Iterator[tuple[int, int]]:
    return ((v, w) for v in range(views) for w in range(v + 1, views))
