"""∂L/∂s of every objective on every kind of pairs, and the measures of hardness derived from it."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from cases import NOT_OF_PAIRS, WITHOUT_NEGATIVES, Case, combinations, named
from conftest import Promise
from kinds import KINDS, Kind
from tiers import every

from contrapose.losses import CATALOGUE, Loss, balanced, cacr, dcl, isogclr, nt_xent, simple, triplet
from contrapose.metrics import penalties
from contrapose.pairs import Pairs, from_similarities, two_views
from contrapose.pairs.negatives import hardest
from contrapose.temperature import PerSample


@pytest.mark.parametrize("pair", every(5, combinations()), ids=named)
def test_similarities_are_all_that_a_loss_sees(pair: tuple[Case, Kind], promise: Promise) -> None:
    """The loss of the similarities equals that of the embeddings, and the chain rule turns ∂L/∂s into ∂L/∂z."""
    case, kind = pair
    raw = kind.draw()
    live = [raw[name].requires_grad_() for name in kind.live]
    pairs = kind.make(raw)
    loss = partial(case.loss, reduction="mean")
    direct = torch.autograd.grad(loss(pairs), live, retain_graph=True, materialize_grads=True)
    result = penalties(loss, pairs)
    torch.testing.assert_close(loss(result.at), loss(pairs).detach(), rtol=1e-12, atol=1e-13)
    if isinstance(pairs, Pairs):
        negative, positive = pairs.anchor @ pairs.pool.T, pairs.positives()
    else:
        negative, positive = pairs.negative, pairs.positive
    n = len(negative)
    # A function that is linear in s, with ∂L/∂s as coefficients: its gradient is ∂L/∂z by the chain rule.
    linearised = ((result.push * negative).sum() - (result.pull * positive).sum()) / n
    for chained, expected in zip(torch.autograd.grad(linearised, live), direct, strict=True):
        torch.testing.assert_close(chained, expected, rtol=1e-9, atol=1e-12)
        promise.case(float((chained - expected).abs().max()))


def test_every_method_of_the_catalogue_has_penalties() -> None:
    pairs = two_views(torch.randn(16, 8), torch.randn(16, 8), ids=torch.arange(16))
    for name in sorted(set(CATALOGUE) - NOT_OF_PAIRS):
        method = CATALOGUE[name]
        if name == "isogclr":
            criterion = Loss(isogclr, state=PerSample(16)).eval()
        elif name == "tau":
            criterion = Loss(method(), score=torch.zeros(32))
        elif name == "supcon":
            criterion = Loss(method(), labels=torch.arange(16) // 2)
        else:
            criterion = Loss(method())
        result = penalties(criterion, pairs)
        assert (float(result.push.abs().sum()) > 0) == (name not in WITHOUT_NEGATIVES), name
        assert float(result.pull.sum()) > 0, name
        assert all(value is None or math.isfinite(value) for value in result.summary().values()), name
        # Candidates that are not negatives are not pushed.
        assert result.at.same_id is not None
        assert float(result.push[result.at.same_id].abs().max()) == 0, name


S = torch.linspace(-1, 1, 101, dtype=torch.float64)[None]
POSITIVE = torch.tensor([0.6], dtype=torch.float64)
AT = from_similarities(POSITIVE, S)


@pytest.mark.parametrize("tau", [0.05, 0.1, 0.5, 2.0])
def test_nt_xent_has_the_known_gradient(tau: float) -> None:
    result = penalties(partial(nt_xent, temperature=tau), AT)
    logits = torch.cat([POSITIVE[None], S], 1) / tau
    p = logits.softmax(1)
    torch.testing.assert_close(result.push, p[:, 1:] / tau)
    torch.testing.assert_close(result.attraction, (1 - p[:, 0]) / tau)
    torch.testing.assert_close(result.repulsion, result.attraction)
    torch.testing.assert_close(result.relative, (S / tau).softmax(1))
    assert result.effective_temperature == pytest.approx(tau, rel=1e-9)


def test_effective_temperatures() -> None:
    assert penalties(partial(dcl, temperature=0.2), AT).effective_temperature == pytest.approx(0.2)
    assert penalties(partial(balanced, alpha=8.0, weight=3.0), AT).effective_temperature == pytest.approx(1 / 8)
    assert penalties(
        partial(nt_xent, temperature=0.4, negatives=hardest(9)), AT
    ).effective_temperature == pytest.approx(0.4)
    assert math.isinf(penalties(simple, AT).effective_temperature)
    assert penalties(triplet, AT).effective_temperature == 0
    idle = penalties(triplet, from_similarities(torch.tensor([0.9]), torch.tensor([[0.1, 0.2]])))
    assert math.isnan(idle.effective_temperature)
    assert idle.summary()["effective_temperature"] is None
    ties = penalties(
        partial(nt_xent, temperature=0.1), from_similarities(torch.tensor([0.9]), torch.tensor([[0.5, 0.5]]))
    )
    assert math.isinf(ties.effective_temperature)  # all are pushed equally, not only the hardest
    two_hardest = penalties(triplet, from_similarities(torch.tensor([0.3]), torch.tensor([[0.1, 0.5, 0.5]])))
    assert two_hardest.effective_temperature == 0  # only the hardest are pushed, although there are two


@pytest.mark.parametrize("percent", [7, 14, 28, 55, 56])
def test_share_of_hardest_is_robust_to_rounding(percent: int) -> None:
    """0.07 · 100 is slightly above 7 in binary, and must still count 7 negatives."""
    at = from_similarities(torch.tensor([0.9]), torch.linspace(-1, 1, 100)[None])
    share = float(penalties(simple, at).share_of_hardest(percent / 100))
    assert share == pytest.approx(percent / 100)


def test_balance_and_hardness() -> None:
    weighted = penalties(partial(balanced, alpha=2.0, weight=4.0), AT)
    torch.testing.assert_close(weighted.repulsion / weighted.attraction, torch.tensor([4.0], dtype=torch.float64))
    even = penalties(simple, AT)
    torch.testing.assert_close(even.entropy, torch.tensor([math.log(101)], dtype=torch.float64))
    torch.testing.assert_close(even.share_of_hardest(0.01), torch.tensor([2 / 101], dtype=torch.float64))  # ⌈1.01⌉
    assert float(penalties(triplet, AT).share_of_hardest(0.001)) == 1
    few = penalties(partial(simple, negatives=hardest(5)), AT)
    assert float(few.share_of_hardest(0.05)) == pytest.approx(1)  # ⌈5.05⌉ of them
    # CACR pulls distant negatives, because its weights also depend on the similarities.
    assert float(penalties(partial(cacr, t_neg=2.0), AT).push.min()) < 0


@pytest.mark.parametrize("noise", [0.0, 1e-8])
def test_the_summary_of_a_collapsed_batch_is_finite(noise: float) -> None:
    torch.manual_seed(0)
    pairs = two_views(*(torch.ones(2, 8, 4) + noise * torch.randn(2, 8, 4)))
    for objective in (nt_xent, dcl, cacr, balanced, simple, triplet):
        summary = penalties(objective, pairs).summary()
        assert all(value is None or math.isfinite(value) for value in summary.values())
        assert summary["hardest_similarity"] == pytest.approx(1)


def test_objective_must_return_a_scalar() -> None:
    with pytest.raises(ValueError, match="objective: expected a scalar"):
        penalties(partial(nt_xent, reduction="none"), KINDS["two_views"].make(KINDS["two_views"].draw()))


def test_penalties_work_without_grad_mode_and_leave_no_gradient() -> None:
    z = torch.randn(6, 4, requires_grad=True)
    pairs = two_views(z, z * 2 + 1)
    with torch.no_grad():
        penalties(partial(nt_xent, temperature=0.5), pairs)
    assert z.grad is None
