"""Negatives that another model finds too similar are left out: on every kind of pairs, in blocks, and in tuples of choices."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import oracles
import pytest
import torch
from kinds import EVERY, KINDS, Kind, Raw
from oracles import Batch, Oracle
from tiers import every
from torch import Tensor

from contrapose.losses import dcl, generalized_nt_xent, moco_v3, nt_xent, siglip, simple, supcon, triplet
from contrapose.metrics import penalties
from contrapose.pairs import Pairs, cross, from_similarities, guided, hardest, other_views, queue, two_views
from contrapose.reduce import Count, memory

STEP = 1e-6
GUIDED = sorted(EVERY - {"similarities"})
CHOICES: dict[str, dict[str, Any]] = {"absolute": {"margin": 0.1}, "relative": {"margin": 0.3, "relative": True}}


def threshold(positives: list[float], margin: float, relative: bool = False) -> float:
    top = max(positives)
    return top - margin * abs(top) if relative else top - margin


def with_guide(guide: Batch, **settings: Any) -> Oracle:
    """NT-Xent over the negatives that the guide leaves; 0 for an anchor without any."""
    plain = oracles.nt_xent(oracles.constant(0.3))

    def filtered(batch: Batch) -> Batch:
        anchors = []
        for a, g in zip(batch.anchors, guide.anchors, strict=True):
            limit = threshold([p.s for p in g.positives], **settings)
            kept = [c for c, judged in zip(a.negatives, g.negatives, strict=True) if judged.s <= limit]
            anchors.append(replace(a, negatives=kept))
        return replace(batch, anchors=anchors)

    def oracle(now: Batch, held: Batch) -> list[float]:
        now, held = filtered(now), filtered(held)
        return [
            plain(replace(now, anchors=[a]), replace(held, anchors=[h]))[0] if a.negatives else 0.0
            for a, h in zip(now.anchors, held.anchors, strict=True)
        ]

    return oracle


def make(kind: Kind, raw: Raw) -> Pairs:
    pairs = kind.make(raw)
    assert isinstance(pairs, Pairs)
    return pairs


def guide_of(kind: Kind, m: int = 5, seed: int = 100) -> tuple[Pairs, Batch]:
    raw = kind.draw(m=m, d=6, seed=seed)  # its embeddings may have another width
    return make(kind, raw), kind.spell(raw)


@pytest.mark.parametrize("kind", [KINDS[name] for name in GUIDED], ids=GUIDED)
@pytest.mark.parametrize("settings", every(3, CHOICES.values()), ids=CHOICES)
def test_values_and_gradients_are_those_of_the_formula(kind: Kind, settings: dict[str, Any]) -> None:
    raw, (guide, judged) = kind.draw(m=5), guide_of(kind)
    oracle, held = with_guide(judged, **settings), kind.spell(raw)
    dropped = sum(map(len, (a.negatives for a in held.anchors))) - int(
        make(kind, raw).reduce(Count(), negatives=guided(guide, **settings), may_be_empty=True)[0].sum()
    )
    assert dropped > 0
    for limits in (10**9, 20):
        leaves = {name: value.clone().requires_grad_() for name, value in raw.items()}
        with memory(block=limits, kept=0):
            values = nt_xent(make(kind, leaves), temperature=0.3, negatives=guided(guide, **settings), reduction="none")
            values.mean().backward()
        torch.testing.assert_close(values.detach().tolist(), oracle(held, held), rtol=1e-12, atol=1e-12)
        for name in kind.live:
            gradient, expected = leaves[name].grad, torch.zeros_like(raw[name])
            for i in range(raw[name].numel()):
                ends = []
                for step in (STEP, -STEP):
                    moved = {**raw, name: raw[name].clone()}
                    moved[name].view(-1)[i] += step
                    ends.append(sum(oracle(kind.spell(moved), held)) / len(held.anchors))
                expected.view(-1)[i] = (ends[0] - ends[1]) / (2 * STEP)
            torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("kind", [KINDS[name] for name in GUIDED], ids=GUIDED)
def test_a_guide_that_drops_nothing_changes_nothing(kind: Kind) -> None:
    pairs, (guide, _) = make(kind, kind.draw(m=5)), guide_of(kind)
    torch.testing.assert_close(nt_xent(pairs, negatives=guided(guide, margin=-3.0)), nt_xent(pairs), rtol=1e-14, atol=0)


def test_no_gradient_reaches_the_guide() -> None:
    z, g = torch.randn(2, 6, 4, requires_grad=True), torch.randn(2, 6, 3, requires_grad=True)
    nt_xent(two_views(*z), negatives=guided(two_views(*g))).backward()
    assert z.grad is not None
    assert g.grad is None


@pytest.mark.parametrize("limits", [10**9, 20])
def test_it_combines_with_other_choices(limits: int) -> None:
    """Against the whole matrix of the guide, which only this test computes."""
    z, g = torch.randn(2, 2, 8, 4, dtype=torch.float64)
    pairs, guide = two_views(*z), two_views(*g)
    same_id = pairs.anchor_id[:, None] == pairs.pool_id
    s, judged = pairs.anchor @ pairs.pool.T, guide.anchor @ guide.pool.T
    bad = judged > guide.positives().amax(1, keepdim=True) - 0.2
    other = pairs.anchor_view[:, None] != pairs.pool_view

    def total(kept: Tensor) -> Tensor:
        return torch.nn.functional.softplus(
            s.masked_fill(~kept, -torch.inf).mul(1 / 0.3).logsumexp(1) - pairs.positives()[:, 0] / 0.3, threshold=40
        )

    def loss(*negatives: Any) -> Tensor:
        with memory(block=limits, kept=0):
            return nt_xent(pairs, temperature=0.3, negatives=negatives, reduction="none")

    choice, candidates = guided(guide, margin=0.2), s.masked_fill(same_id, -torch.inf)
    top = torch.zeros_like(same_id).scatter(1, candidates.topk(5, dim=1).indices, True)
    torch.testing.assert_close(loss(other_views(), choice), total(other & ~same_id & ~bad))
    torch.testing.assert_close(loss(choice, other_views()), total(other & ~same_id & ~bad))
    torch.testing.assert_close(loss(hardest(5), choice), total(top & ~bad))


def test_supcon_keeps_its_positives() -> None:
    """The choice applies to candidates with another label only."""
    z, labels = torch.randn(2, 6, 4, dtype=torch.float64), torch.tensor([0, 0, 1, 1, 2, 2])
    pairs = two_views(*z)
    drop_all = guided(two_views(*z), margin=3.0)
    positives = supcon(pairs, labels=torch.zeros(6).long())
    kept = supcon(pairs, labels=torch.zeros(6).long(), negatives=drop_all)
    torch.testing.assert_close(kept, positives, rtol=1e-14, atol=0)
    assert float(supcon(pairs, labels=labels, negatives=drop_all)) < float(supcon(pairs, labels=labels))


@pytest.mark.parametrize("limits", [None, 20])
def test_an_anchor_may_lose_all_negatives(limits: int | None) -> None:
    z = torch.randn(2, 6, 4, dtype=torch.float64)
    guide = two_views(*torch.randn(2, 6, 4, dtype=torch.float64))
    everything, most = guided(guide, margin=3.0), guided(guide, margin=0.6)
    (count,) = two_views(*z).reduce(Count(), negatives=most, may_be_empty=True)
    assert 0 < int((count == 0).sum()) < 12
    for objective in (nt_xent, moco_v3, generalized_nt_xent, triplet):
        leaf = z.clone().requires_grad_()
        with memory(block=limits or 10**9, kept=0):
            values = objective(two_views(*leaf), negatives=most, reduction="none")
            values.mean().backward()
            none_left = objective(two_views(*leaf), negatives=everything, reduction="none")
        assert leaf.grad is not None
        assert bool(leaf.grad.isfinite().all())
        assert bool(values.isfinite().all())
        push = penalties(partial(objective, negatives=most), two_views(*z)).push  # by plain autograd
        assert bool(push.isfinite().all())
        assert bool((push[count == 0] == 0).all())
        if objective is not generalized_nt_xent:  # whose positive is still pulled, by 1 - λ
            assert none_left.abs().max() == 0
    for refused in (dcl, simple):
        with pytest.raises(ValueError, match=r"guided\(guide, margin=3.0\) leaves an anchor without negatives"):
            refused(two_views(*z), negatives=everything)


def test_penalties_see_the_same_negatives() -> None:
    z, g = torch.randn(2, 2, 6, 4, dtype=torch.float64)
    choice = guided(two_views(*g), margin=0.1)
    result = penalties(partial(nt_xent, negatives=choice), two_views(*z))
    kept = two_views(*z).reduce(Count(), negatives=choice, may_be_empty=True)[0]
    assert torch.equal((result.push > 0).sum(1).double(), kept)


def test_bad_arguments_are_named() -> None:
    z, g = torch.randn(2, 6, 4), torch.randn(2, 5, 4)
    with pytest.raises(
        ValueError, match="guide: expected pairs of the same samples, 12 anchors and 12 candidates, got 10"
    ):
        nt_xent(two_views(*z), negatives=guided(two_views(*g)))
    with pytest.raises(ValueError, match="12 anchors and 12 candidates, got 6 anchors and 6 candidates"):
        nt_xent(two_views(*z), negatives=guided(cross(*z)))
    with pytest.raises(ValueError, match=r"guide: expected the result of two_views, .*, got Tensor"):
        guided(z[0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"guide: expected the result of two_views, .*, got Similarities"):
        guided(from_similarities(torch.rand(3), torch.rand(3, 5)))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="margin: expected a finite number"):
        guided(two_views(*z), margin=float("nan"))


def test_supcon_has_a_gradient_where_nothing_but_positives_is_left() -> None:
    z = torch.randn(2, 6, 4, dtype=torch.float64, requires_grad=True)
    everything = guided(two_views(*torch.randn(2, 6, 3, dtype=torch.float64)), margin=5.0)
    loss = supcon(two_views(*z), labels=torch.tensor([0, 1, 2, 3, 4, 4]), negatives=everything)
    loss.backward()
    assert z.grad is not None
    assert torch.isfinite(loss)
    assert torch.isfinite(z.grad).all()


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_guide_of_another_length_is_refused_by_siglip_too(reduction: str) -> None:
    rows = torch.randn(20, 4)
    pairs, guide = (queue(torch.randn(n, 4), torch.randn(n, 4), rows) for n in (6, 9))
    with pytest.raises(ValueError, match="guide: expected pairs of the same samples"):
        siglip(pairs, negatives=guided(guide), reduction=reduction)
