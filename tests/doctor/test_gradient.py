"""The gradient of any criterion with respect to each similarity, beside autograd on the similarities themselves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import pytorch_metric_learning.losses as pml
import torch
from lightly.loss import NTXentLoss
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from contrapose import CATALOGUE, Loss, nt_xent, penalties, two_views
from contrapose.doctor.call import read_call
from contrapose.doctor.gradient import SimilarityGradient, similarity_gradient
from contrapose.doctor.quiet import CannotAsk, copy_of

COUNT, WIDTH = 12, 7


def views() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    z = torch.randn(COUNT, WIDTH)
    return z, z + 0.5 * torch.randn(COUNT, WIDTH)


def gradient_of(criterion: Callable[..., Tensor], *arguments: Tensor) -> SimilarityGradient:
    return similarity_gradient(read_call(criterion, arguments, {}), partial(copy_of, criterion))


def oracle(loss: Callable[[Tensor], Tensor], *sides: Tensor) -> Tensor:
    """∂L/∂s with s_ij and s_ji as one number, by autograd on the matrix of similarities."""
    z = normalize(torch.cat(sides).double())
    s = (z @ z.T).requires_grad_()
    (gradient,) = torch.autograd.grad(loss(s), s)
    return (gradient + gradient.T).fill_diagonal_(0.0)


def dense_nt_xent(s: Tensor, temperature: float) -> Tensor:
    logits = (s / temperature).masked_fill(torch.eye(len(s), dtype=torch.bool), -torch.inf)
    return cross_entropy(logits, torch.arange(len(s)).roll(len(s) // 2))


def assert_near(found: SimilarityGradient, expected: Tensor, tolerance: float = 1e-4) -> None:
    assert float((found.gradient - expected).norm() / expected.norm()) < tolerance


@pytest.mark.parametrize("temperature", [0.05, 0.5])
def test_of_three_libraries(temperature: float) -> None:
    z1, z2 = views()
    expected = oracle(partial(dense_nt_xent, temperature=temperature), z1, z2)
    assert_near(gradient_of(Loss(nt_xent, temperature=temperature), z1, z2), expected)
    assert_near(gradient_of(NTXentLoss(temperature=temperature), z1, z2), expected)
    labels = torch.arange(COUNT).repeat(2)
    assert_near(gradient_of(pml.NTXentLoss(temperature=temperature), torch.cat([z1, z2]), labels), expected, 1e-3)


def test_of_any_function_of_similarities() -> None:
    """With lengths: the derivative with respect to the cosine is that of the dot product times both lengths."""
    z1, z2 = views()
    weight = torch.randn(2 * COUNT, 2 * COUNT, dtype=torch.float64)
    lengths = torch.cat([z1, z2]).double().norm(dim=1)

    def dots(a: Tensor, b: Tensor) -> Tensor:
        z = torch.cat([a, b])
        return (weight * torch.sin(z @ z.T)).sum()

    expected = oracle(lambda s: (weight * torch.sin(s * lengths[:, None] * lengths)).sum(), z1, z2)
    assert_near(gradient_of(dots, z1, z2), expected)


def test_of_a_criterion_with_a_detached_side() -> None:
    z1, z2 = views()
    found = gradient_of(lambda a, b: -(normalize(a) * normalize(b.detach())).sum(1).mean(), z1, z2)
    expected = torch.zeros(2 * COUNT, 2 * COUNT, dtype=torch.float64)
    expected.diagonal(COUNT).fill_(-1 / COUNT)
    expected.diagonal(-COUNT).fill_(-1 / COUNT)
    assert_near(found, expected)
    assert found.has_gradient.tolist() == [True] * COUNT + [False] * COUNT


@pytest.mark.parametrize("method", ["dystress", "dcl", "hard_negative", "triplet", "cacr", "align_uniform"])
def test_of_our_losses_beside_penalties(method: str) -> None:
    """`penalties` differentiates with respect to similarities directly; its row i has only what anchor i does."""
    z1, z2 = views()
    objective = CATALOGUE[method](**{"negatives": None} if method == "triplet" else {})
    pairs = two_views(z1.double(), z2.double())
    at = penalties(objective, pairs)
    n = 2 * COUNT
    matrix = torch.zeros(n, n, dtype=torch.float64)
    matrix[:, :] = at.push / n
    partner = torch.arange(n).roll(COUNT)
    matrix[torch.arange(n), partner] -= at.pull[:, 0] / n
    assert_near(gradient_of(Loss(objective), z1, z2), (matrix + matrix.T).fill_diagonal_(0.0), 1e-3)


def test_of_float32_only() -> None:
    z1, z2 = views()

    def half(a: Tensor, b: Tensor) -> Tensor:
        assert a.dtype == torch.float32
        z = normalize(torch.cat([a, b]))
        return dense_nt_xent(z @ z.T, 0.2)

    assert_near(gradient_of(half, z1, z2), oracle(partial(dense_nt_xent, temperature=0.2), z1, z2), 1e-2)


@pytest.mark.parametrize("method", ["vicreg", "barlow_twins", "w_mse"])
def test_what_depends_on_coordinates_is_refused(method: str) -> None:
    with pytest.raises(CannotAsk, match="not a function of the similarities alone"):
        gradient_of(Loss(method), *views())


def test_what_has_a_fixed_width_is_refused() -> None:
    z1, z2 = views()
    with pytest.raises(CannotAsk, match="cannot be called with other embeddings"):
        gradient_of(pml.ProxyAnchorLoss(COUNT, WIDTH), torch.cat([z1, z2]), torch.arange(COUNT).repeat(2))


def test_losses_of_wrong_and_of_perfect_pairs() -> None:
    found = gradient_of(Loss(nt_xent, temperature=0.5), *views())
    ideal = torch.tensor(2 * COUNT - 2 + torch.e**2).log() - 2
    torch.testing.assert_close(found.ideal, ideal.double(), rtol=1e-5, atol=1e-5)
    assert found.value < found.mismatched
    torch.testing.assert_close(found.rescaled, found.value)
