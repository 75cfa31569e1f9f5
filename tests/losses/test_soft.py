"""Soft targets against plain loops on every kind of pairs, given weights of all forms, teachers, and what is refused."""

from __future__ import annotations

from typing import Any

import oracles
import pytest
import torch
from kinds import EVERY, KINDS, Kind, Raw
from tiers import every
from torch import Tensor

from contrapose.losses import Loss, margin_mse, nt_xent, soft_nt_xent, supcon
from contrapose.pairs import (
    Pairs,
    cross,
    from_similarities,
    given_targets,
    guide_targets,
    guided,
    hardest,
    other_views,
    two_views,
    views,
)
from contrapose.reduce import memory
from contrapose.temperature import cosine, learned

GUIDED = sorted(EVERY - {"similarities"})
TAU, GUIDE_TAU = 0.3, 0.2
STEP = 1e-6


def pairs_of(kind: Kind, raw: Raw) -> Pairs:
    pairs = kind.make(raw)
    assert isinstance(pairs, Pairs)
    return pairs


def differences(function: Any, raw: Raw, name: str) -> Tensor:
    """Return the gradient of the mean of `function(raw)` by central differences."""
    gradient = torch.zeros_like(raw[name])
    for i in range(raw[name].numel()):
        ends = []
        for step in (STEP, -STEP):
            moved = {**raw, name: raw[name].clone()}
            moved[name].view(-1)[i] += step
            values = function(moved)
            ends.append(sum(values) / len(values))
        gradient.view(-1)[i] = (ends[0] - ends[1]) / (2 * STEP)
    return gradient


@pytest.mark.parametrize("kind", every(5, [KINDS[name] for name in GUIDED]), ids=GUIDED)
@pytest.mark.parametrize("form", ["cross_entropy", "kl"])
@pytest.mark.parametrize("proportional", [False, True])
def test_values_and_gradients_are_those_of_the_formula(kind: Kind, form: str, proportional: bool) -> None:
    raw, other = kind.draw(m=4), kind.draw(m=4, d=6, seed=100)  # the guide's embeddings may have another width
    targets = guide_targets(pairs_of(kind, other), temperature=None if proportional else GUIDE_TAU)
    judged = kind.spell(other)

    def oracle(now: Raw) -> list[float]:
        temperature = None if proportional else GUIDE_TAU
        return oracles.soft_nt_xent(kind.spell(now), judged, TAU, temperature, kl=form == "kl")

    for limits in (10**9, 20):
        leaves = {name: value.clone().requires_grad_() for name, value in raw.items()}
        with memory(block=limits, kept=0):
            values = soft_nt_xent(kind.make(leaves), targets=targets, form=form, temperature=TAU, reduction="none")
            values.mean().backward()
        torch.testing.assert_close(values.detach().tolist(), oracle(raw), rtol=1e-12, atol=1e-12)
        for name in kind.live:
            torch.testing.assert_close(leaves[name].grad, differences(oracle, raw, name), rtol=1e-5, atol=1e-8)


def test_similarity_values_with_a_teachers_scores() -> None:
    """Distillation: the divergence between the softmax of a student's and a teacher's scores, with torch's own functions."""
    s, t = torch.randn(2, 5, 4, dtype=torch.float64)
    s.requires_grad_()
    targets = given_targets(t[:, 1:], t[:, 0], temperature=0.7)
    pairs = from_similarities(s[:, 0], s[:, 1:])
    found = soft_nt_xent(pairs, targets=targets, form="kl", temperature=0.7, reduction="none")
    expected = torch.nn.functional.kl_div(
        (s / 0.7).log_softmax(1), (t / 0.7).log_softmax(1), reduction="none", log_target=True
    ).sum(1)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    gradients = [torch.autograd.grad(loss.sum(), s, retain_graph=True)[0] for loss in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-14)
    assert torch.autograd.gradcheck(
        lambda x: soft_nt_xent(from_similarities(x[:, 0], x[:, 1:]), targets=targets, temperature=0.7), s
    )


def test_weights_of_one_are_nt_xent_and_of_a_class_supcon() -> None:
    z1, z2 = torch.randn(2, 6, 4, dtype=torch.float64)
    pairs = two_views(z1, z2)
    alone = given_targets(torch.zeros(12, 12, dtype=torch.float64))
    torch.testing.assert_close(soft_nt_xent(pairs, targets=alone, temperature=0.2), nt_xent(pairs, temperature=0.2))
    labels = torch.tensor([0, 0, 1, 1, 1, 2])
    tags = torch.nn.functional.one_hot(labels).double()
    of_class = guide_targets(two_views(tags, tags, similarity="dot"), temperature=None)
    torch.testing.assert_close(
        soft_nt_xent(pairs, targets=of_class, temperature=0.2), supcon(pairs, labels=labels, temperature=0.2)
    )


def test_shared_tags_are_counted() -> None:
    tags = torch.tensor([[1, 1, 0], [1, 0, 1], [0, 1, 1]]).double()
    pairs = cross(torch.randn(3, 4).double(), torch.randn(3, 4).double())
    found = soft_nt_xent(
        pairs, targets=guide_targets(cross(tags, tags, similarity="dot"), temperature=None), temperature=0.5
    )
    weights = torch.tensor([[2, 1, 1], [1, 2, 1], [1, 1, 2]]).double() / 4
    similarity = pairs.anchor @ pairs.pool.T / 0.5
    torch.testing.assert_close(found, -(weights * similarity.log_softmax(1)).sum(1).mean())


@pytest.mark.parametrize("limits", [10**9, 20])
@pytest.mark.parametrize("choice", [None, other_views(), hardest(5), (other_views(), hardest(3))], ids=repr)
def test_sparse_weights_are_dense_weights(limits: int, choice: Any) -> None:
    z = torch.randn(2, 8, 4, dtype=torch.float64)
    weights = torch.rand(16, 16, dtype=torch.float64).mul(torch.rand(16, 16) > 0.8)
    values = []
    for given in (weights, weights.to_sparse()):
        leaf = z.clone().requires_grad_()
        with memory(block=limits, kept=0):
            loss = soft_nt_xent(two_views(*leaf), targets=given_targets(given, 0.5), negatives=choice)
            loss.backward()
        assert leaf.grad is not None
        values.append((loss.detach(), leaf.grad))
    assert values[0][0] == values[1][0]
    assert torch.equal(values[0][1], values[1][1])
    pairs = two_views(*z)
    kept = torch.zeros(16, 16, dtype=torch.bool)
    s = (pairs.anchor @ pairs.pool.T).masked_fill(pairs.anchor_id[:, None] == pairs.pool_id, -torch.inf)
    if choice is not None and choice != hardest(5):
        s = s.masked_fill(pairs.anchor_view[:, None] == pairs.pool_view, -torch.inf)
    count = 5 if choice == hardest(5) else 3 if isinstance(choice, tuple) else 16
    kept = kept.scatter(1, s.topk(count).indices, True) & (s > -torch.inf)
    both = torch.cat([pairs.positives(), s.masked_fill(~kept, -torch.inf)], 1) / 0.1
    p = torch.cat([torch.full((16, 1), 0.5, dtype=torch.float64), weights * kept], 1)
    p = p / p.sum(1, keepdim=True)
    expected = -(p * both.log_softmax(1).masked_fill(p == 0, 0.0)).sum(1).mean()
    torch.testing.assert_close(values[0][0], expected, rtol=1e-12, atol=1e-12)


def of_rows(pairs: Pairs) -> Tensor:
    """Return the similarities of each anchor with its positive and its negatives; -inf for other candidates."""
    excluded = pairs.anchor_id[:, None] == pairs.pool_id
    return torch.cat([pairs.positives(), (pairs.anchor @ pairs.pool.T).masked_fill(excluded, -torch.inf)], 1)


@pytest.mark.parametrize("temperature", [0.3, cosine(0.1, 0.4), torch.linspace(0.1, 0.6, 12).double()], ids=str)
@pytest.mark.parametrize("limits", [10**9, 20])
def test_every_temperature(temperature: Any, limits: int) -> None:
    z, g = torch.randn(2, 2, 6, 4, dtype=torch.float64)
    s, judged = of_rows(two_views(*z)), of_rows(two_views(*g))
    scale = temperature(s) if callable(temperature) else temperature
    scale = scale[:, None] if isinstance(scale, Tensor) and scale.ndim == 1 else scale
    p, q = (judged / 0.1).softmax(1), torch.where(s > -torch.inf, s / scale, -torch.inf).log_softmax(1)
    targets = guide_targets(two_views(*g))
    with memory(block=limits, kept=0):
        found = soft_nt_xent(two_views(*z), targets=targets, temperature=temperature, reduction="none")
    torch.testing.assert_close(found, -(p * q.masked_fill(p == 0, 0.0)).sum(1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("limits", [10**9, 20])
def test_a_learned_temperature(limits: int) -> None:
    z, g = torch.randn(2, 2, 6, 4, dtype=torch.float64)
    p, s, gradients = (of_rows(two_views(*g)) / 0.1).softmax(1), of_rows(two_views(*z)), []
    tau = learned(0.3).double()
    with memory(block=limits, kept=0):
        found = soft_nt_xent(two_views(*z), targets=guide_targets(two_views(*g)), temperature=tau)
    logits = torch.where(s > -torch.inf, s.masked_fill(s == -torch.inf, 0.0) / tau(), -torch.inf)
    expected = -(p * logits.log_softmax(1).masked_fill(p == 0, 0.0)).sum(1).mean()
    for loss in (found, expected):
        gradients.append(torch.autograd.grad(loss, list(tau.parameters())))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


def test_no_gradient_reaches_the_guide() -> None:
    z, g = torch.randn(2, 6, 4, requires_grad=True), torch.randn(2, 6, 3, requires_grad=True)
    soft_nt_xent(two_views(*z), targets=guide_targets(two_views(*g))).backward()
    assert z.grad is not None
    assert g.grad is None


def test_a_guide_leaves_out_and_attracts() -> None:
    """Choices apply to candidates; an anchor that loses all of them keeps its positive."""
    z, g = torch.randn(2, 2, 6, 4, dtype=torch.float64)
    pairs, guide = two_views(*z), two_views(*g)
    loss = soft_nt_xent(pairs, targets=guide_targets(guide), negatives=guided(guide, margin=3.0), reduction="none")
    assert float(loss.abs().max()) == 0


def test_three_views_have_two_positives() -> None:
    z, g = torch.randn(2, 3, 5, 4, dtype=torch.float64)
    found = soft_nt_xent(views(z), targets=guide_targets(views(g), temperature=GUIDE_TAU), temperature=TAU)
    s, t = ((x := torch.nn.functional.normalize(rows.flatten(0, 1), dim=1)) @ x.T for rows in (z, g))
    own = torch.eye(15, dtype=torch.bool)
    p = (t / GUIDE_TAU).masked_fill(own, -torch.inf).softmax(1)
    q = (s / TAU).masked_fill(own, -torch.inf).log_softmax(1).masked_fill(own, 0.0)
    torch.testing.assert_close(found, -(p * q).sum(1).mean())


def test_a_module_takes_targets_with_each_call() -> None:
    z, g = torch.randn(2, 2, 6, 4)
    criterion = Loss("soft_nt_xent(temperature=0.2)")
    targets = guide_targets(two_views(*g))
    assert torch.equal(criterion(*z, targets=targets), soft_nt_xent(two_views(*z), targets=targets, temperature=0.2))
    assert criterion.negatives_per_anchor(*z, targets=targets) == 10


@pytest.mark.parametrize("kind", every(3, [KINDS[name] for name in GUIDED]), ids=GUIDED)
def test_margins_are_those_of_a_teacher(kind: Kind) -> None:
    raw, other = kind.draw(m=4), kind.draw(m=4, d=6, seed=100)
    targets, judged = guide_targets(pairs_of(kind, other)), kind.spell(other)

    def oracle(now: Raw) -> list[float]:
        return oracles.margin_mse(kind.spell(now), judged)

    for limits in (10**9, 20):
        leaves = {name: value.clone().requires_grad_() for name, value in raw.items()}
        with memory(block=limits, kept=0):
            values = margin_mse(kind.make(leaves), targets=targets, reduction="none")
            values.mean().backward()
        torch.testing.assert_close(values.detach().tolist(), oracle(raw), rtol=1e-12, atol=1e-12)
        for name in kind.live:
            torch.testing.assert_close(leaves[name].grad, differences(oracle, raw, name), rtol=1e-5, atol=1e-8)


def test_small_margins_keep_their_digits() -> None:
    """Scores of a hundred with errors of a thousandth: the squares are those of the differences."""
    s = torch.tensor([[100.0, 100.5, 99.5]]) + torch.tensor([[0.0, 1e-3, -1e-3]])
    loss = margin_mse(from_similarities(s[:, 0], s[:, 1:]), targets=given_targets(torch.tensor([[100.5, 99.5]]), 100.0))
    errors = (s[:, 0:1] - s[:, 1:]) - (100 - torch.tensor([[100.5, 99.5]]))
    torch.testing.assert_close(loss, errors.square().mean(), rtol=1e-5, atol=0)


def test_sentence_transformers_computes_the_same() -> None:
    """MarginMSE and distillation by divergence, on embeddings, with gradients."""
    from sentence_transformers.sentence_transformer.losses import DistillKLDivLoss, MarginMSELoss

    batch = torch.randn(4, 5, 8, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(5, 3, dtype=torch.float64)
    scores = (batch[0] * batch[1:]).sum(2).T
    pairs = from_similarities(scores[:, 0], scores[:, 1:])
    margins = MarginMSELoss(None).compute_loss_from_embeddings(list(batch), teacher[:, :1] - teacher[:, 1:])
    divergence = DistillKLDivLoss(None, temperature=2.0).compute_loss_from_embeddings(list(batch), teacher)
    ours = (
        margin_mse(pairs, targets=given_targets(teacher[:, 1:], teacher[:, 0])),
        soft_nt_xent(
            pairs, targets=given_targets(teacher[:, 1:], teacher[:, 0], temperature=2.0), form="kl", temperature=2.0
        )
        * 2.0**2,
    )
    for found, expected in zip(ours, (margins, divergence), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
        gradients = [torch.autograd.grad(loss, batch, retain_graph=True)[0] for loss in (found, expected)]
        torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-14)


def test_bad_arguments_are_named() -> None:
    z, g = torch.randn(2, 6, 4), torch.randn(2, 5, 4)
    pairs, zeros = two_views(*z), torch.zeros(12, 12)
    for make, message in (
        (
            lambda: guide_targets(two_views(*g)),
            "targets: expected a guide's pairs of the same samples.*12 anchors with 1",
        ),
        (lambda: given_targets(torch.zeros(12, 11)), r"shape \(12, 12\), got \(12, 11\)"),
        (lambda: given_targets(torch.zeros(12, 11).to_sparse()), r"shape \(12, 12\), got \(12, 11\)"),
        (lambda: given_targets(zeros, torch.ones(12, 2)), r"positives: expected a number, or one for each.*\(12, 1\)"),
        (lambda: given_targets(zeros, 0.0), "targets: expected a weight above 0"),
        (lambda: given_targets(zeros - 1), "targets: expected weights of at least 0, got one below 0; for a teacher"),
        (lambda: given_targets(zeros, -1.0), "targets: expected weights of at least 0"),
        (lambda: given_targets(zeros + torch.nan, 1.0, temperature=1.0), "candidates: expected finite numbers"),
        (lambda: given_targets(zeros, temperature=1.0), "positives: expected the scores of the positives"),
        (lambda: given_targets(zeros.to_sparse(), 1.0, temperature=1.0), "temperature: expected None, since missing"),
        (lambda: given_targets(zeros.long()), "candidates: expected floating point numbers"),
        (lambda: given_targets(zeros, temperature=0.0), "temperature: expected"),
        (lambda: guide_targets(z[0]), "guide: expected the result of two_views"),  # type: ignore[arg-type]
        (lambda: guide_targets(pairs, temperature=-1.0), "temperature: expected"),
        (lambda: zeros, "targets: expected the result of guide_targets or given_targets, got Tensor"),
    ):
        with pytest.raises(ValueError, match=message):
            soft_nt_xent(pairs, targets=make())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="on the device of the embeddings, cpu, got meta"):
        soft_nt_xent(pairs, targets=guide_targets(two_views(*z.to("meta"))))
    with pytest.raises(ValueError, match="form: expected"):
        soft_nt_xent(pairs, targets=given_targets(zeros), form="js")


def test_scores_are_no_weights() -> None:
    pairs = two_views(*torch.randn(2, 4, 8))
    scores = torch.rand(8, 8)
    assert margin_mse(pairs, targets=given_targets(scores, 2.0)).isfinite()
    with pytest.raises(ValueError, match="targets: expected the scores of the positives too"):
        margin_mse(pairs, targets=given_targets(scores))
    with pytest.raises(ValueError, match="targets: expected a score for every candidate, got a sparse tensor"):
        margin_mse(pairs, targets=given_targets(scores.to_sparse(), 2.0))
