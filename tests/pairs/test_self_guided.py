"""Negatives more similar than the positive by a margin are left out: on every kind of pairs, in blocks, and with other choices."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from kinds import EVERY, KINDS, Kind
from torch import Tensor

from contrapose.losses import Loss, dcl, nt_xent, supcon
from contrapose.pairs import Pairs, cross, from_similarities, guided, hardest, self_guided, two_views, views
from contrapose.reduce import Count, memory

CHOICES: dict[str, dict[str, Any]] = {
    "default": {},
    "below": {"margin": -0.2},
    "relative": {"margin": 0.3, "relative": True},
}
ALL = sorted(EVERY)


def by_loops(kind: Kind, raw: dict[str, Tensor], *, margin: float = 0.1, relative: bool = False) -> list[float]:
    """NT-Xent at temperature 0.3, averaged over an anchor's positives."""
    values = []
    for anchor in kind.spell(raw).anchors:
        top = max(p.s for p in anchor.positives)
        limit = top + margin * abs(top) if relative else top + margin
        repelled = sum(math.exp(c.s / 0.3) for c in anchor.negatives if not c.s > limit)
        each = [-p.s / 0.3 + math.log(math.exp(p.s / 0.3) + repelled) for p in anchor.positives]
        values.append(sum(each) / len(each))
    return values


@pytest.mark.parametrize("kind", [KINDS[name] for name in ALL], ids=ALL)
@pytest.mark.parametrize("settings", CHOICES.values(), ids=CHOICES)
@pytest.mark.parametrize("limits", [10**9, 20])
def test_values_are_those_of_the_formula(kind: Kind, settings: dict[str, Any], limits: int) -> None:
    raw = kind.draw(m=5)
    with memory(block=limits, kept=0):
        found = nt_xent(kind.make(raw), temperature=0.3, negatives=self_guided(**settings), reduction="none")
    torch.testing.assert_close(found.tolist(), by_loops(kind, raw, **settings), rtol=1e-12, atol=1e-12)
    if not settings.get("relative"):
        everything = nt_xent(kind.make(raw), temperature=0.3, reduction="none")
        assert float((everything - found).max()) > 1e-3


@pytest.mark.parametrize("kind", [KINDS[name] for name in ALL if name != "similarities"], ids=lambda kind: kind.name)
def test_gradients_are_those_of_a_guide_that_is_the_model_itself(kind: Kind) -> None:
    raw, gradients = kind.draw(m=5), []
    guide = kind.make(raw)
    assert isinstance(guide, Pairs)
    for choice in (self_guided(margin=0.05), guided(guide, margin=-0.05)):
        leaves = {name: value.clone().requires_grad_(name in kind.live) for name, value in raw.items()}
        nt_xent(kind.make(leaves), temperature=0.3, negatives=choice).backward()
        gradients.append([leaves[name].grad for name in kind.live])
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-14)


def test_the_threshold_has_no_gradient() -> None:
    """Where it lies decides which negatives count, but not how much they do."""
    pos, neg = torch.tensor([0.5], requires_grad=True), torch.tensor([[0.4, 0.7]], requires_grad=True)
    nt_xent(from_similarities(pos, neg), temperature=1.0, negatives=self_guided(margin=0.1)).backward()
    assert pos.grad is not None
    assert neg.grad is not None
    weight = 1 / (1 + math.exp(0.1))
    torch.testing.assert_close(neg.grad, torch.tensor([[weight, 0.0]]))
    torch.testing.assert_close(pos.grad, torch.tensor([-weight]))


@pytest.mark.parametrize("limits", [10**9, 20])
def test_it_combines_with_hardest(limits: int) -> None:
    z = torch.randn(2, 8, 4, dtype=torch.float64)
    pairs = two_views(*z)
    s = (pairs.anchor @ pairs.pool.T).masked_fill(pairs.anchor_id[:, None] == pairs.pool_id, -torch.inf)
    top = torch.zeros_like(s, dtype=torch.bool).scatter(1, s.topk(5).indices, True)
    kept = s.masked_fill(~top | (s > pairs.positives() + 0.1), -torch.inf).mul(1 / 0.3).logsumexp(1)
    expected = torch.nn.functional.softplus(kept - pairs.positives()[:, 0] / 0.3, threshold=40)
    with memory(block=limits, kept=0):
        found = nt_xent(pairs, temperature=0.3, negatives=(hardest(5), self_guided(margin=0.1)), reduction="none")
    torch.testing.assert_close(found, expected)


def test_a_duplicate_is_left_out_and_the_loss_as_text_does_the_same() -> None:
    """Without ids, a copy of a sample would be its own hardest negative; with a negative margin it is none."""
    z1, z2 = torch.randn(2, 6, 4, dtype=torch.float64)
    z1, z2 = torch.cat([z1, z1[:1]]), torch.cat([z2, z2[:1]])
    (count,) = two_views(z1, z2).reduce(Count(), negatives=self_guided(margin=-1e-9), may_be_empty=True)
    assert int(count.max()) < 12
    expected = nt_xent(two_views(z1, z2), temperature=0.2, negatives=self_guided(margin=-0.05, relative=True))
    criterion = Loss("nt_xent(temperature=0.2, negatives=self_guided(margin=-0.05, relative=True))")
    torch.testing.assert_close(criterion(z1, z2), expected, rtol=0, atol=0)


def test_supcon_keeps_its_positives() -> None:
    z = torch.randn(2, 6, 4, dtype=torch.float64)
    labels = torch.zeros(6).long()
    kept = supcon(two_views(*z), labels=labels, negatives=self_guided(margin=-2.0))
    torch.testing.assert_close(kept, supcon(two_views(*z), labels=labels), rtol=1e-14, atol=0)


def test_bad_arguments_are_named() -> None:
    z = torch.randn(2, 6, 4)
    with pytest.raises(ValueError, match="margin: expected a finite number"):
        self_guided(margin=float("inf"))
    with pytest.raises(ValueError, match=r"self_guided\(margin=0.1\) compares candidates with the anchor's positive"):
        supcon(views([z[0]]), labels=torch.zeros(6).long(), negatives=self_guided())
    with pytest.raises(ValueError, match=r"self_guided\(margin=-2.0\) leaves an anchor without negatives"):
        dcl(cross(*z), negatives=self_guided(margin=-2.0))
