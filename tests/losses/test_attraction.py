"""BYOL's and SimSiam's losses equal lightly's, exact near coincidence; values and gradients are among the promises."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch
from lightly.loss import NegativeCosineSimilarity
from torch import Tensor

from contrapose.embeddings import Embeddings, within_batch
from contrapose.losses import CATALOGUE, Loss, byol, simsiam
from contrapose.metrics import penalties
from contrapose.pairs import cross, two_views, views


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_equal_to_lightly_in_value_and_gradient() -> None:
    """lightly trains both with the mean of two negative cosines: BYOL's own loss has four times the gradient."""
    theirs, target = NegativeCosineSimilarity(), draw(2, 9, 5, seed=1)
    gradients = []
    for form in ("lightly", "simsiam", "byol"):
        p = draw(2, 9, 5).requires_grad_()
        embeddings = Embeddings(z=p, target=target, compare=within_batch)
        if form == "lightly":
            value = expected = (theirs(p[0], target[1]) + theirs(p[1], target[0])) / 2
        else:
            value = Loss(CATALOGUE[form])(embeddings)
        gradients.append(torch.autograd.grad(value, p)[0])
        wanted = expected if form != "byol" else 4 + 4 * expected
        torch.testing.assert_close(value, wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients[2], 4 * gradients[0], rtol=1e-12, atol=1e-12)


def test_several_views_add_up_in_byol_and_average_in_simsiam() -> None:
    z, keys = draw(3, 6, 4), draw(3, 6, 4, seed=1)
    pairs = [(v, w) for v in range(3) for w in range(3) if v != w]
    cosines = torch.stack([torch.cosine_similarity(z[v], keys[w], dim=1).mean() for v, w in pairs])
    torch.testing.assert_close(simsiam(views(z, keys=keys)), -cosines.mean())
    torch.testing.assert_close(byol(views(z, keys=keys)), 3 * (2 - 2 * cosines.mean()))
    torch.testing.assert_close(byol(cross(z[0], keys[1])), 2 - 2 * cosines[0])  # one direction


@pytest.mark.parametrize("form", ["simsiam", "byol"])
def test_one_image_needs_no_negatives(form: str) -> None:
    """As in lightly; a loss that repels refuses the same pairs."""
    theirs, target, p = NegativeCosineSimilarity(), draw(2, 1, 5, seed=1), draw(2, 1, 5).requires_grad_()
    expected = (theirs(p[0], target[1]) + theirs(p[1], target[0])) / 2
    pairs = views(p, keys=target)
    value = Loss(CATALOGUE[form])(pairs)
    torch.testing.assert_close(value, expected if form == "simsiam" else 4 + 4 * expected, rtol=1e-12, atol=1e-12)
    assert bool(torch.autograd.grad(value, p)[0].any())
    for other in ("simclr", "moco_v3", "dcl", "cacr", "triplet"):
        with pytest.raises(ValueError, match="one image in the batch has no negatives: expected at least two images"):
            Loss(CATALOGUE[other])(pairs)


def test_reductions_agree() -> None:
    pairs = views(draw(2, 5, 4), keys=draw(2, 5, 4, seed=1))
    for loss in (byol, simsiam):
        each = loss(pairs, reduction="none")
        assert each.shape == (10,)
        torch.testing.assert_close(loss(pairs), each.mean())
        torch.testing.assert_close(loss(pairs, reduction="sum"), each.sum())


def test_the_target_has_no_gradient() -> None:
    p, z = (draw(2, 6, 4, seed=seed).requires_grad_() for seed in (0, 1))
    for loss in (byol, simsiam):
        value = loss(Embeddings(z=p, target=z, compare=within_batch).pairs)
        assert torch.autograd.grad(value, (p, z), allow_unused=True)[1] is None
        assert torch.equal(loss(views(list(p), keys=list(z))), value)


@pytest.mark.parametrize("loss", [byol, simsiam])
def test_views_without_keys_would_collapse_and_are_refused(loss: Callable[..., Tensor]) -> None:
    """Every gradient to both sides is refused with the line to write; that line works, and so does a detached side."""
    z1, z2 = draw(2, 6, 4).requires_grad_().unbind()
    message = f"all embeddings become equal: .*; write {loss.__name__}" + re.escape("(views([p1, p2], keys=[z1, z2]))")
    for pairs in (two_views(z1, z2), views([z1, z2, z1]), cross(z1, z2), cross(z1, z2, symmetric=True)):
        with pytest.raises(ValueError, match=message):
            loss(pairs)
    for criterion in (Loss(loss), Loss(loss.__name__)):
        with pytest.raises(ValueError, match=message):
            criterion(z1, z2)
        with pytest.raises(ValueError, match=message):
            criterion(Embeddings(z=torch.stack([z1, z2]), compare=within_batch))
    each = [loss(cross(p, z.detach())) for p, z in ((z1, z2), (z2, z1))]
    both = loss(views([z1, z2], keys=[z1, z2]))
    torch.testing.assert_close(both, sum(each) if loss is byol else sum(each) / 2)


def test_exact_where_predictions_nearly_coincide_with_targets() -> None:
    z = torch.nn.functional.normalize(draw(2, 8, 16), dim=-1)
    near = z.flip(0) + 1e-5 * draw(2, 8, 16, seed=1)
    exact = byol(views(near, keys=z))
    assert float(exact) < 1e-7
    assert float(byol(views(near.float(), keys=z.float()))) == pytest.approx(float(exact), rel=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_finite_for_constant_features_and_low_precision(dtype: torch.dtype) -> None:
    one = torch.randn(2, 1, 8)
    for z in (torch.randn(2, 6, 8), torch.zeros(2, 6, 8), torch.full((2, 6, 8), 0.1), one.expand(2, 6, 8)):
        for loss in (byol, simsiam):
            leaf = z.to(dtype).requires_grad_()
            value = loss(views(leaf, keys=z.to(dtype).flip(0)))
            (gradient,) = torch.autograd.grad(value, leaf)
            assert value.dtype == torch.float32
            assert bool(value.isfinite())
            assert bool(gradient.isfinite().all())


def test_a_record_has_the_pull_and_no_push() -> None:
    p, z = torch.randn(2, 2, 6, 4)
    for name, pull in (("byol", 4.0), ("simsiam", 1.0)):
        summary = penalties(Loss(CATALOGUE[name]), views(p, keys=z)).summary()
        assert summary["attraction"] == pytest.approx(pull)
        assert summary["repulsion"] == 0
        assert [summary[key] for key in ("penalty_entropy", "effective_temperature", "push_on_hardest_1pct")] == [
            None
        ] * 3
        assert all(value is None or math.isfinite(value) for value in summary.values())


def test_tensors_are_refused_with_the_call_to_write() -> None:
    z = torch.randn(2, 6, 4)
    for loss in (byol, simsiam):
        with pytest.raises(ValueError, match=re.escape(f"write {loss.__name__}(views([p1, p2], keys=[z1, z2]))")):
            loss(*z)
        with pytest.raises(ValueError, match="expected pairs with similarity='cosine'"):
            loss(two_views(*z, similarity="dot"))
