"""Derivatives beyond the first are right or refused in words: second ones, those of torch.func, and batches of gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from cases import CASES, Case, combinations, named
from conftest import FULL, Promise
from kinds import Kind
from tiers import every
from torch import Tensor
from torch.func import grad, jacrev, jvp, vmap

from contrapose.losses import dcl, nt_xent
from contrapose.pairs import Pairs, cross, from_similarities, two_views, unit
from contrapose.reduce import memory

WAY_OUT = r"from_similarities\(pos, neg\), which has all derivatives"
KINDS_CHECKED = ("similarities", "two_views", "queue_batch", "cross_symmetric", "bank")
OF_SIMILARITIES = [pair for pair in combinations(smooth=True) if pair[1].name in KINDS_CHECKED]
OF_EMBEDDINGS = [(case, kind) for case, kind in combinations() if kind.name != "similarities"]


@pytest.mark.parametrize("pair", every(5, OF_EMBEDDINGS), ids=named)
def test_embeddings_have_no_second_derivative(pair: tuple[Case, Kind], promise: Promise) -> None:
    case, kind = pair
    raw = kind.draw(m=4, d=3)
    live = [raw[name].requires_grad_() for name in kind.live]
    value = case.loss(kind.make(raw), reduction="mean")
    with pytest.raises(RuntimeError, match=f"no second derivative; call backward without create_graph=True.*{WAY_OUT}"):
        torch.autograd.grad(value, live, create_graph=True)
    promise.case()


@pytest.mark.parametrize("path", ["whole", "blocks"])
@pytest.mark.parametrize("similarity", ["dot", "neg_euclid"])
def test_unnormalised_embeddings_have_none_either(similarity: str, path: str) -> None:
    z = torch.randn(2, 5, 3, requires_grad=True)
    with memory(block=10**9 if path == "whole" else 10, kept=0):
        for loss in (nt_xent, dcl):
            with pytest.raises(RuntimeError, match="no second derivative"):
                torch.autograd.grad(loss(two_views(*z, similarity=similarity)), z, create_graph=True)


@pytest.mark.parametrize("pair", every(3, OF_SIMILARITIES), ids=named)
def test_similarities_have_second_derivatives(pair: tuple[Case, Kind], promise: Promise) -> None:
    case, kind = pair
    pairs = kind.make(kind.draw(m=3, d=3, seed=2))
    at = pairs.similarities() if isinstance(pairs, Pairs) else pairs
    loss = partial(case.loss, reduction="mean")
    values = at.positive.clone().requires_grad_(), at.negative.clone().requires_grad_()
    assert torch.autograd.gradgradcheck(
        lambda p, n: loss(replace(at, positive=p, negative=n)), values, fast_mode=not FULL
    )
    promise.case()


def loss_of_embeddings(z: Tensor) -> Tensor:
    return nt_xent(two_views(z[0], z[1]), temperature=0.2)


def loss_of_similarities(z: Tensor) -> Tensor:
    a, b = torch.nn.functional.normalize(z, dim=-1)
    negatives = (a @ b.T)[~torch.eye(len(a), dtype=torch.bool)].view(len(a), -1)
    return nt_xent(from_similarities((a * b).sum(1), negatives), temperature=0.2)


TRANSFORMS: dict[str, Callable[..., Any]] = {
    "grad": lambda loss, z: grad(loss)(z),
    "jacrev": lambda loss, z: jacrev(loss)(z),
    "vmap": lambda loss, z: vmap(loss)(z[None].expand(3, *z.shape)),
    "jvp": lambda loss, z: jvp(loss, (z,), (z,)),
    "hessian": lambda loss, z: jacrev(jacrev(loss))(z),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:FutureWarning")  # of torch's own modules, imported by jvp
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_are_refused_in_words(transform: str) -> None:
    z = torch.randn(2, 5, 3, dtype=torch.float64)
    raw: list[Callable[[Tensor], Tensor]] = [
        loss_of_embeddings,
        lambda z: dcl(cross(z[0], z[1])),
        lambda z: nt_xent(two_views(z[0], z[1], similarity="dot")),
        lambda z: unit(z).sum(),
    ]
    for loss in raw:
        with pytest.raises(RuntimeError, match=rf"^torch.func \(grad, vmap, jacrev, …\) is not supported.*{WAY_OUT}"):
            TRANSFORMS[transform](loss, z)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:FutureWarning")
def test_the_way_out_leads_to_all_of_them() -> None:
    z = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    value = loss_of_similarities(z)
    torch.testing.assert_close(value, nt_xent(cross(z[0], z[1]), temperature=0.2))
    (first,) = torch.autograd.grad(value, z, create_graph=True)
    (second,) = torch.autograd.grad((first * z.detach()).sum(), z)
    z = z.detach()
    torch.testing.assert_close(grad(loss_of_similarities)(z), first.detach())
    torch.testing.assert_close(jvp(loss_of_similarities, (z,), (z,))[1], (first * z).sum().detach())
    hessian = jacrev(jacrev(loss_of_similarities))(z)
    torch.testing.assert_close((hessian * z).sum((-1, -2, -3)), second)


def test_a_batch_of_gradients_is_right_or_refused() -> None:
    """Autograd runs the backward pass under vmap. Plain operations give the right rows, ours say what to do."""
    for limits in (10**9, 20):
        for name in ("nt_xent", "dystress", "align_uniform", "simple", "siglip", "cacr"):
            z = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
            with memory(block=limits, kept=0):
                values = CASES[name].loss(two_views(*z))
                rows = torch.eye(len(values), dtype=torch.float64)
                with pytest.raises(RuntimeError, match=f"is_grads_batched=True, or vectorize=True, .*{WAY_OUT}"):
                    torch.autograd.grad(values, z, rows, is_grads_batched=True)
    z = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    values = CASES["dystress"].loss(two_views(*z))
    expected = torch.stack([torch.autograd.grad(values, z, row, retain_graph=True)[0] for row in rows])
    torch.testing.assert_close(torch.autograd.grad(values, z, rows, is_grads_batched=True)[0], expected)
