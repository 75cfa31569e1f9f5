"""Alignment in float32 is as exact as the difference of the unit vectors, however close the views are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from conftest import Promise
from torch import Tensor
from torch.nn.functional import normalize

from contrapose.losses import align_uniform, cacr
from contrapose.pairs import Pairs, bank, cross, from_similarities, queue, two_views, views

ROWS = torch.randn(9, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
MAKE: dict[str, Callable[[Tensor], Pairs]] = {
    "two views": lambda z: two_views(z[0], z[1]),
    "three views": views,
    "keys": lambda z: views(z, keys=z),
    "cross": lambda z: cross(z[0], z[1]),
    "both directions": lambda z: cross(z[0], z[1], symmetric=True, negatives=ROWS.to(z)),
    "all directions": lambda z: cross(z[0], z[1], directions=("a_to_b", "a_to_a", "b_to_a", "b_to_b")),
    "queue": lambda z: queue(z[0], z[1:], ROWS.to(z)),
    "queue and batch": lambda z: queue(z, z, ROWS.to(z), batch=True),
    "bank": lambda z: bank(z[0], torch.arange(z.shape[1]), torch.cat([z[1], ROWS.to(z)])),
}


def near_views(distance: float) -> Tensor:
    """Return three views of six samples, (3, 6, 16) in float32, at about this distance from each other."""
    generator = torch.Generator().manual_seed(3)
    samples, noise = (torch.randn(shape, dtype=torch.float64, generator=generator) for shape in ((6, 16), (3, 6, 16)))
    return (normalize(samples, dim=-1) + distance * normalize(noise, dim=-1)).float()


def value_and_gradient(loss: Callable[[Pairs], Tensor], make: Callable[[Tensor], Pairs], z: Tensor) -> list[Tensor]:
    leaf = z.clone().requires_grad_()
    value = loss(make(leaf))
    value.backward()
    assert leaf.grad is not None
    return [value.detach().double(), leaf.grad.double()]


def relative_errors(loss: Callable[[Pairs], Tensor], make: Callable[[Tensor], Pairs], z: Tensor) -> list[float]:
    """Return the errors of value and gradient in float32, beside float64 on the same embeddings."""
    ours, exact = value_and_gradient(loss, make, z), value_and_gradient(loss, make, z.double())
    return [float((a - b).norm() / b.norm()) for a, b in zip(ours, exact, strict=True)]


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("kind", MAKE)
def test_alignment_of_near_views_is_exact(kind: str, alpha: float, promise: Promise) -> None:
    loss = partial(align_uniform, alpha=alpha, uniform_weight=0.0)
    for distance in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6):
        for error in relative_errors(loss, MAKE[kind], near_views(distance)):
            # Unit vectors are rounded by 6e-8, which is what their difference is off by.
            assert error < 1e-6 + 1e-7 / distance
            promise.case(error * distance)


@pytest.mark.parametrize("kind", MAKE)
def test_the_gradient_of_cacr_is_exact_for_near_views(kind: str) -> None:
    """Its cost 2 - 2s is linear in s: the rounding of its value does not reach the gradient."""
    for distance in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5):
        _, gradient_error = relative_errors(partial(cacr, repel_weight=0.0), MAKE[kind], near_views(distance))
        assert gradient_error < 1e-6 + 3e-7 / distance


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
def test_coincident_views_have_no_alignment_and_no_gradient_of_it(alpha: float) -> None:
    for name, make in MAKE.items():
        z = near_views(0.0)
        leaf = z.clone().requires_grad_()
        value = align_uniform(make(leaf), alpha=alpha, uniform_weight=0.0)
        value.backward()
        assert leaf.grad is not None
        assert float(value.detach()) == 0, name
        assert float(leaf.grad.abs().max()) == 0, name


def test_similarity_values_have_distances_from_similarities() -> None:
    positive = torch.tensor([[0.5], [0.9]], dtype=torch.float64)
    values = align_uniform(from_similarities(positive, positive), alpha=1.0, uniform_weight=0.0, reduction="none")
    torch.testing.assert_close(values, (2 - 2 * positive[:, 0]).sqrt())
