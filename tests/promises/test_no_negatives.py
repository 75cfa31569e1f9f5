"""An anchor without negatives is not repelled, and its value and gradient are finite; or an error says that it has none."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from cases import NOT_OF_PAIRS, OF_VIEWS, WITHOUT_NEGATIVES
from conftest import Promise
from kinds import KINDS
from tiers import every
from torch import Tensor

from contrapose.losses import CATALOGUE, align_uniform
from contrapose.metrics import penalties
from contrapose.pairs import Choice, Pairs, batch_rows, guided, queue
from contrapose.reduce import Count

# The sum over no negatives is 0 in these; the others divide by it or take its logarithm.
DEFINED = {
    "align_uniform", "clip", "contrastive", "dystress", "dystress_shifted", "fnc", "fnc_elimination", "generalized_nt_xent",
    "hard_contrastive", "moco_v3", "nnclr", "simclr", "supcon", "temperature_free", "triplet",
}  # fmt: skip
METHODS = sorted(set(CATALOGUE) - {"isogclr", "tau", "temperature_schedule"} - OF_VIEWS - NOT_OF_PAIRS)
SAMPLES, WIDTH = 5, 4


def objective(name: str, pairs: Pairs, **settings: Any) -> partial[Tensor]:
    if name == "supcon":  # every sample is a class of its own
        stored = torch.arange(pairs.stored) if pairs.stored and bool((pairs.pool_id >= 0).all()) else None
        settings |= {"labels": pairs.anchor_id, "stored_labels": stored}
    if name.startswith("fnc"):  # no candidate is a false negative, and so a positive
        settings |= {"threshold": 2.0}
    return CATALOGUE[name](**settings)


def check_finite(loss: partial[Tensor], pairs: Pairs, *leaves: Tensor) -> Tensor:
    """Return ∂L/∂s, (n, m), after checking that the loss, its gradients and those of the similarities are finite."""
    value = loss(pairs)
    gradients = torch.autograd.grad(value, leaves, allow_unused=True, retain_graph=True)
    result = penalties(loss, pairs)
    assert all(bool(x.isfinite().all()) for x in (value.detach(), result.push, result.pull))
    assert all(bool(gradient.isfinite().all()) for gradient in gradients if gradient is not None)
    torch.testing.assert_close(loss(result.at), value.detach(), rtol=1e-10, atol=1e-10)
    return result.push


def negatives_left(pairs: Pairs, choice: Choice) -> Tensor:
    return pairs.reduce(Count(), negatives=choice, may_be_empty=True)[0].detach()


@pytest.mark.parametrize("kind", every(3, sorted(set(KINDS) - {"similarities"})))
@pytest.mark.parametrize("name", sorted(set(METHODS) - WITHOUT_NEGATIVES))
def test_a_guide_may_leave_no_negatives(name: str, kind: str, promise: Promise) -> None:
    raw = KINDS[kind].draw(SAMPLES, WIDTH)
    leaves = [raw[live].requires_grad_() for live in KINDS[kind].live]
    pairs, guide = KINDS[kind].make(raw), KINDS[kind].make(KINDS[kind].draw(SAMPLES, WIDTH, seed=1))
    assert isinstance(pairs, Pairs)
    assert isinstance(guide, Pairs)
    counts = {margin / 5: negatives_left(pairs, guided(guide, margin=margin / 5)) for margin in range(16)}
    some = next(margin for margin, count in counts.items() if count.min() == 0 and count.max() > 0)
    for margin in (some, 3.0):
        loss = objective(name, pairs, negatives=guided(guide, margin=margin))
        # On views these two compare each pair of views on its own, which a guide of all views does not fit.
        if name in DEFINED or (name in ("cmc", "cacr_moco_v3") and not pairs.has_views):
            push = check_finite(loss, pairs, *leaves)
            assert float(push[counts[margin] == 0].abs().max()) == 0
            promise.case()
        else:
            with pytest.raises(
                ValueError, match=r"leaves an anchor without negatives|guide: expected pairs of the same"
            ):
                loss(pairs)
            promise.case()


@pytest.mark.parametrize("name", METHODS)
def test_queries_without_other_queries(name: str, promise: Promise) -> None:
    """With `batch`, a single query, or queries of one sample, have stored rows as their only negatives."""
    for views, samples in ((1, 1), (1, 3), (2, 1), (2, 3)):
        q = torch.randn(views, samples, WIDTH, dtype=torch.float64)
        q = (q[0] if views == 1 else q).requires_grad_()
        k, rows = torch.randn_like(q), torch.randn(6, WIDTH, dtype=torch.float64)
        pairs = queue(q, k, rows, batch=True, ids=torch.zeros(samples, dtype=torch.long))
        push = check_finite(objective(name, pairs), pairs, q)
        assert float(push[:, 6:].abs().max()) == 0
        promise.case()


def test_uniformity_of_no_pair_is_zero() -> None:
    q = torch.randn(3, WIDTH, dtype=torch.float64, requires_grad=True)
    pairs = queue(q, q + 0.1, torch.randn(6, WIDTH), batch=True, ids=torch.zeros(3, dtype=torch.long))
    loss = partial(align_uniform, negatives=batch_rows())
    check_finite(loss, pairs, q)
    torch.testing.assert_close(loss(pairs), align_uniform(pairs, uniform_weight=0.0))
