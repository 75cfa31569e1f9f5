"""Unit vectors and their products row by row, by operations that keep no copies of the embeddings for the backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import threshold

from contrapose.reduce.hardware import has_kernels, is_half

_EPSILON = 1e-12
_WIDEST = 2048  # coordinates that kernels hold of a row
_AT_ONCE = 2**20  # coordinates whose products are there at the same time
_PLAIN = torch.contiguous_format


def unit(z: Tensor) -> Tensor:
    """z / ‖z‖ in float32 or better: the one place where embeddings are normalised.

    A vector shorter than 1e-12 becomes zero and gets no gradient, since it has no direction to turn.
    """
    made: Tensor = _Unit.apply(z)
    return made


def units(*embeddings: Tensor) -> list[Tensor]:
    """Unit vectors of one precision, the best among them; one tensor given twice stays one."""
    made = {key: unit(z) for key, z in {id(z): z for z in embeddings}.items()}
    best = reduce(torch.promote_types, (z.dtype for z in made.values()))
    made = {key: z.to(best) for key, z in made.items()}
    return [made[id(z)] for z in embeddings]


def full_precision(like: Tensor) -> torch.autocast:
    """Inside, products are not rounded: of bf16, which autocast makes, a log-sum-exp at low temperature multiplies the error."""
    return torch.autocast(like.device.type, enabled=False)


def refuse_second_derivative() -> None:
    """For backward passes that autograd cannot follow, such as all of ours."""
    if torch.is_grad_enabled():  # create_graph=True
        raise RuntimeError("first derivatives only: losses of embeddings have no second derivative here")


def same_tensor(a: Tensor, b: Tensor) -> bool:
    """Whether two unit vectors' tensors are one and the same, also where autograd hands out other objects for it."""
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape


def matmul(a: Tensor, b: Tensor, *, bf16: bool = False) -> Tensor:
    """Return a @ b in full precision; with `bf16`, on a GPU, of factors rounded to bf16, with float32 sums and no autograd."""
    if bf16 and a.is_cuda and a.dtype == torch.float32:
        return torch.mm(a.bfloat16(), b.bfloat16(), out_dtype=torch.float32)
    with full_precision(a):
        return a @ b


def products(anchor: Tensor, positive: Tensor) -> Tensor:
    """a_i · p_ik for (n, d) and (n, k, d): (n, k)."""
    with full_precision(anchor):
        return (anchor[:, None] * positive).sum(-1)


def unit_views(*views: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Unit vectors of V views, and each row's products with the same row of the views after it: (V, m, d), (V · m, V - 1).

    Views come one by one or as one tensor (V, m, d). Both at once, so that in the backward pass there is one gradient of the
    embeddings and not one for each. In passing, where kernels do it and embeddings came in half precision: unit vectors in bf16.
    """
    made: tuple[Tensor, Tensor, Tensor | None] = _UnitViews.apply(*views)
    return made


def _chunks(rows: int, width: int) -> Iterator[slice]:
    step = max(1, _AT_ONCE // width)
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def _row_products(a: Tensor, b: Tensor) -> Tensor:
    """a_i · b_i for (n, d)."""
    if a.numel() <= _AT_ONCE:
        return (a * b).sum(-1)
    return torch.cat([(a[rows] * b[rows]).sum(-1) for rows in _chunks(*a.shape)])


def _inverse_length(z: Tensor) -> Tensor:
    """1 / ‖z‖ in float32 or better, 0 for what has no direction."""
    length = torch.linalg.vector_norm(z, dim=-1, keepdim=True, dtype=torch.float32 if is_half(z) else None)
    return threshold(length, _EPSILON, torch.inf).reciprocal_()


def _turned_(moved: Tensor, made: Tensor, inverse: Tensor) -> Tensor:
    """What turns a vector, over its length, written over the gradient g of its direction u: (g - (g · u) u) / ‖z‖."""
    flat, d = made.reshape(-1, made.shape[-1]), made.shape[-1]
    along = _row_products(moved.view(-1, d), flat)[:, None]
    moved.view(-1, d).addcmul_(flat, along, value=-1.0)
    return moved.mul_(inverse)


class _Unit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        inverse = _inverse_length(z)
        made = z * inverse
        ctx.save_for_backward(made, inverse)
        ctx.dtype = z.dtype
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        refuse_second_derivative()
        moved = gradient.clone(memory_format=_PLAIN)
        return _turned_(moved, *ctx.saved_tensors).to(ctx.dtype)


class _UnitViews(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *views: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        ctx.given, ctx.dtypes = len(views), [z.dtype for z in views]
        ctx.set_materialize_grads(False)
        pair = (views[0][0], views[0][1]) if len(views) == 1 and len(views[0]) == 2 else views
        ctx.in_kernels = _fit_kernels(pair)
        if ctx.in_kernels:
            from contrapose.reduce import unit_kernels

            made, inverse, found, rounded = unit_kernels.forward(*pair)
        else:
            z = views[0] if len(views) == 1 else torch.stack(views)
            inverse, rounded = _inverse_length(z), None
            made = z * inverse
            found = _view_products(made)
        ctx.save_for_backward(made, inverse)
        if rounded is not None:
            ctx.mark_non_differentiable(rounded)
        return made, found, rounded

    @staticmethod
    def backward(
        ctx: Any, gradient: Tensor | None, of_products: Tensor | None, _: Tensor | None
    ) -> Tensor | tuple[Tensor, ...]:
        refuse_second_derivative()
        made, inverse = ctx.saved_tensors
        if ctx.in_kernels:
            from contrapose.reduce import unit_kernels

            moved = unit_kernels.backward(gradient, of_products, made, inverse, ctx.dtypes[0])
        else:
            moved = _views_moved(gradient, of_products, made)
            moved = _turned_(moved, made, inverse)
        if ctx.given == 1:
            return moved.to(ctx.dtypes[0])
        return tuple(part.to(dtype) for part, dtype in zip(moved, ctx.dtypes, strict=True))


def _view_products(made: Tensor) -> Tensor:
    """(V · m, V - 1): each row's products with the same row of the views after it."""
    views, m, _ = made.shape
    if views == 2:
        both = _row_products(made[0], made[1])
        return torch.cat([both, both])[:, None]
    found = made.new_empty((views, m, views - 1))
    for v, w in _view_pairs(views):
        found[v, :, w - v - 1] = found[w, :, (v - w) % views - 1] = _row_products(made[v], made[w])
    return found.flatten(0, 1)


def _views_moved(gradient: Tensor | None, of_products: Tensor | None, made: Tensor) -> Tensor:
    """The gradient of unit vectors, from theirs and that of their products."""
    views, m, _ = made.shape
    moved = torch.zeros_like(made, memory_format=_PLAIN) if gradient is None else gradient.clone(memory_format=_PLAIN)
    if of_products is not None:
        of_products = of_products.reshape(views, m, views - 1)
        for v, w in _view_pairs(views):
            both = (of_products[v, :, w - v - 1] + of_products[w, :, (v - w) % views - 1])[:, None]
            moved[v].addcmul_(made[w], both)
            moved[w].addcmul_(made[v], both)
    return moved


def _fit_kernels(views: tuple[Tensor, ...]) -> bool:
    """Two views on a GPU, of rows that fit in registers: there it is the number of launches that counts."""
    z = views[0]
    alike = len(views) == 2 and views[1].dtype == z.dtype != torch.float64 and views[1].device == z.device
    return alike and z.is_cuda and z.shape[1] <= _WIDEST and has_kernels(z.device)


def _view_pairs(views: int) -> Iterator[tuple[int, int]]:
    return ((v, w) for v in range(views) for w in range(v + 1, views))
