"""The hardness penalty: its place in NT-Xent and DCL, and its equality with sentence-transformers' loss."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from contrapose.losses import dcl, nt_xent
from contrapose.metrics import penalties
from contrapose.pairs import cross, two_views
from contrapose.reduce import memory

Z = torch.randn(2, 6, 4, dtype=torch.float64)


def test_without_hardness_nothing_changes() -> None:
    pairs = two_views(*Z)
    assert torch.equal(nt_xent(pairs, hardness=0.0), nt_xent(pairs))
    assert torch.equal(dcl(pairs, hardness=0), dcl(pairs))


def test_nt_xent_is_still_the_softplus_of_dcl() -> None:
    pairs = two_views(*Z)
    decoupled = dcl(pairs, temperature=0.3, hardness=5.0, reduction="none")
    torch.testing.assert_close(
        nt_xent(pairs, temperature=0.3, hardness=5.0, reduction="none"), torch.nn.functional.softplus(decoupled)
    )


def test_the_push_is_a_softmax_at_a_lower_temperature() -> None:
    """Weights are those of the temperature 1 / (1/τ + α), and the total push on all negatives stays 1/τ."""
    result = penalties(lambda pairs: dcl(pairs, temperature=0.5, hardness=8.0), two_views(*Z))
    torch.testing.assert_close(result.repulsion, torch.full((12,), 2.0, dtype=torch.float64))
    assert result.effective_temperature == pytest.approx(0.1)


@pytest.mark.parametrize("limit", [8, 10**9])
def test_a_learned_temperature_gets_its_gradient(limit: int) -> None:
    """The gradient of τ flows through s/τ and not through the penalty: compare with a matrix in plain autograd."""
    pairs = cross(*Z)
    for per_anchor in (False, True):
        gradients = []
        for plain in (False, True):
            temperature = torch.full((6,) if per_anchor else (), 0.3, dtype=torch.float64, requires_grad=True)
            with memory(block=limit, kept=0):
                loss = (
                    _matrix(pairs.anchor @ pairs.pool.T, temperature)
                    if plain
                    else (nt_xent(pairs, temperature=temperature, hardness=4.0))
                )
                gradients.append(torch.autograd.grad(loss, temperature)[0])
        torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-12, atol=1e-14)


def _matrix(s: Tensor, temperature: Tensor) -> Tensor:
    own = torch.eye(len(s), dtype=torch.bool)
    logits = s / temperature.reshape(-1, 1) + torch.where(own, 0.0, 4.0 * s.detach())
    return torch.nn.functional.cross_entropy(logits, torch.arange(len(s)))


def test_temperatures_with_parameters() -> None:
    width = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda w: nt_xent(cross(*Z), temperature=lambda s: 0.2 + w * s.square(), hardness=2.0), width
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_is_that_of_sentence_transformers() -> None:
    losses = pytest.importorskip("sentence_transformers.losses")
    host = losses.MultipleNegativesRankingLoss(
        torch.nn.Identity(), scale=20.0, hardness_mode="in_batch_negatives", hardness_strength=9.0
    )
    results = []
    for ours in (True, False):
        a, b = Z.clone().requires_grad_()
        loss = (
            nt_xent(cross(a, b), temperature=0.05, hardness=9.0)
            if ours
            else host.compute_loss_from_embeddings([a, b], None)
        )
        results.append((loss.detach(), *torch.autograd.grad(loss, (a, b))))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_hardness_must_be_a_number() -> None:
    with pytest.raises(ValueError, match="hardness: expected a finite number, got nan"):
        nt_xent(two_views(*Z), hardness=float("nan"))
