"""What an objective takes: pairs, embeddings or assignments to prototypes. `Loss` makes each from the same input."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, log_softmax

from contrapose.embeddings import Assignments, Embeddings, between_towers, with_bank, with_queue, within_batch
from contrapose.explanation.subject import Subject
from contrapose.losses import CATALOGUE, Loss, clip, nt_xent, siglip, tau
from contrapose.losses.objective import objective, traits_of
from contrapose.pairs import bank, cross, queue, two_views, views
from contrapose.temperature import learned


@objective(takes="embeddings")
def decorrelation(embeddings: Embeddings, *, weight: float = 1.0) -> Tensor:
    """A statistic of features, not of pairs, as Barlow Twins has it."""
    one, two = (z - z.mean(0) for z in embeddings.z)
    return torch.mean((one.T @ two).square()) * weight


@objective(takes="assignments")
def agreement(assignments: Assignments) -> Tensor:
    """Each view predicts the other's prototypes, as SwAV has it."""
    one, two = assignments.scores
    return -torch.mean((two.detach().softmax(-1) * log_softmax(one, -1)).sum(-1))


Z = torch.randn(2, 6, 4, requires_grad=True)


def test_an_objective_of_embeddings() -> None:
    wanted = decorrelation(Embeddings(z=Z, compare=within_batch), weight=2.0)
    criterion = Loss(decorrelation, weight=2.0)
    torch.testing.assert_close(criterion(Z[0], Z[1]), wanted)
    torch.testing.assert_close(criterion(Z), wanted)
    with pytest.raises(ValueError, match="embeddings: decorrelation expected Embeddings, got Pairs"):
        criterion(two_views(Z[0], Z[1]))


def test_an_objective_of_assignments() -> None:
    prototypes = torch.randn(3, 4, requires_grad=True)
    loss = Loss(agreement)(Embeddings(z=Z, compare=within_batch, prototypes=prototypes))
    loss.backward()
    assert prototypes.grad is not None
    assert torch.isfinite(prototypes.grad).all()
    with pytest.raises(ValueError, match="prototypes: this loss assigns samples to prototypes"):
        Loss(agreement)(Z)


def test_only_scores_of_the_own_prototypes_have_a_gradient() -> None:
    target, stored = torch.randn(2, 6, 4, requires_grad=True), torch.randn(2, 3, 4, requires_grad=True)
    prototypes, teacher = (torch.randn(5, 4, requires_grad=True) for _ in range(2))
    weight, center = torch.ones(()), torch.zeros(5)
    given: dict[str, Any] = {"stored": stored, "stored_weight": weight, "center": center, "global_views": 2}
    embeddings = partial(Embeddings, z=Z, target=target, prototypes=prototypes, compare=within_batch, **given)
    made = embeddings(target_prototypes=teacher).assignments
    for scores, one, other in (
        (made.scores, Z, prototypes),
        (made.target, target, teacher),
        (embeddings().assignments.target, target, prototypes),
        (made.stored, stored, prototypes),
    ):
        assert scores is not None
        assert scores.requires_grad == (scores is made.scores)
        torch.testing.assert_close(scores, cosine_similarity(one[:, :, None], other, dim=-1))
    assert made.stored_weight is weight
    assert made.center is center
    assert made.global_views == 2


def test_pairs_are_made_as_the_framework_compares() -> None:
    rows, ids, keys = torch.randn(9, 4), torch.arange(6), torch.randn(2, 6, 4)
    for compare, target, wanted in (
        (within_batch, None, views(Z, ids=ids)),
        (within_batch, keys, views(Z, keys=keys, ids=ids)),
        (with_queue(rows, batch=True), keys, queue(Z, keys, rows, batch=True, ids=ids)),
        (with_bank(rows), None, bank(Z, ids, rows)),
        (between_towers, None, cross(*Z[:2], symmetric=True, ids=ids)),
    ):
        embeddings = Embeddings(z=Z, target=target, ids=ids, compare=compare)
        torch.testing.assert_close(nt_xent(embeddings.pairs), nt_xent(wanted))
        torch.testing.assert_close(Loss(nt_xent)(embeddings), nt_xent(wanted))


def test_a_network_provides_what_a_loss_asks_for() -> None:
    score = torch.randn(2, 6)
    embeddings = Embeddings(z=Z, score=score, compare=within_batch)
    torch.testing.assert_close(Loss(tau)(embeddings), tau(views(Z), score=score.flatten()))
    with pytest.raises(ValueError, match="score: this loss needs this output"):
        Loss(tau)(Embeddings(z=Z, compare=within_batch))


def test_a_learned_temperature_belongs_to_the_criterion() -> None:
    criterion = Loss(nt_xent, temperature=learned(0.2))
    (parameter,) = criterion.parameters()
    loss = criterion(Z[0], Z[1])
    torch.testing.assert_close(loss, nt_xent(two_views(Z[0], Z[1]), temperature=0.2))
    loss.backward()
    assert parameter.grad is not None
    assert float(parameter.grad) != 0
    assert "log_temperature" in next(iter(criterion.state_dict()))


def test_two_tensors_become_the_pairs_that_an_objective_is_about() -> None:
    one, two = Z.detach()
    ids = torch.tensor([0, 1, 2, 3, 4, 0])
    made: tuple[tuple[Any, Any], ...] = ((clip, partial(cross, symmetric=True)), (siglip, cross))
    for loss, make in made:
        torch.testing.assert_close(loss(one, two, temperature=0.2), loss(make(one, two), temperature=0.2))
        for criterion in (Loss(loss, temperature=0.2), Loss(CATALOGUE[loss.__name__](temperature=0.2))):
            wanted = loss(make(one, two, ids=ids), temperature=0.2)
            torch.testing.assert_close(criterion(one, two, ids=ids), wanted)
            torch.testing.assert_close(criterion(Z.detach(), ids=ids), wanted)
        for wrong in ((one,), (one, two, two)):
            with pytest.raises(ValueError, match=rf"; for two views write {loss.__name__}\(z1, z2\)"):
                loss(*wrong)
        with pytest.raises(ValueError, match="pairs: expected the result of two_views"):
            loss(cross(one, two), two)
        with pytest.raises(ValueError, match="b: expected a tensor of embeddings, got float"):
            loss(one, 0.07)
    assert Loss(clip)(torch.randn(3, 4, 5)).ndim == 0


def test_there_is_nothing_to_explain_without_similarities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contrapose.losses.parse._OBJECTIVES", {"decorrelation": decorrelation})
    with pytest.raises(ValueError, match="decorrelation is not a loss of similarities"):
        Subject.of("decorrelation")
    assert traits_of(nt_xent).takes == "pairs"
