"""Losses of prefixes: equal to a loop over embeddings that are cut before anything else, for every loss and kind of pairs."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from kinds import EVERY, KINDS, Kind
from tiers import every
from torch import Tensor

from contrapose.embeddings import Embeddings, within_batch
from contrapose.losses import CATALOGUE, Loss, barlow_twins, clip, koleo, nested, nt_xent, siglip, supcon
from contrapose.losses.objective import traits_of
from contrapose.pairs import from_similarities, guide_targets, hardest, two_views, views
from contrapose.temperature import cosine, learned

DIMS, WEIGHTS = (2, 3, 5), (0.5, 1.0, 2.0)
CUT = sorted(EVERY - {"similarities"})
LOSSES = sorted(
    name
    for name, method in CATALOGUE.items()
    if (traits := traits_of(method.objective)).takes != "assignments"
    and traits.make_state is None
    and not traits.provided
    and not traits.needs_target
)


def check(found: Tensor, expected: Tensor, *leaves: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad(loss.sum(), leaves, retain_graph=True) for loss in (found, expected)]
    assert max(float(gradient.abs().max()) for gradient in gradients[0]) > 1e-6
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", [KINDS[name] for name in CUT], ids=CUT)
@pytest.mark.parametrize("settings", [{"temperature": 0.3}, {"temperature": cosine(0.1, 0.4), "negatives": hardest(2)}])
def test_every_kind_of_pairs(kind: Kind, settings: dict[str, Any]) -> None:
    raw = kind.draw(m=4, d=5)
    leaves = {name: value.requires_grad_(name in kind.live) for name, value in raw.items()}
    found = nested(nt_xent, dims=DIMS, weights=WEIGHTS)(kind.make(leaves), **settings, reduction="none")
    expected = torch.zeros_like(found)
    for width, weight in zip(DIMS, WEIGHTS, strict=True):
        short = {
            name: x[..., :width] if x.is_floating_point() and x.shape[-1] == 5 else x for name, x in leaves.items()
        }
        expected = expected + weight * nt_xent(kind.make(short), **settings, reduction="none")
    check(found, expected, *(leaves[name] for name in kind.live))


@pytest.mark.parametrize("name", every(5, LOSSES))
def test_every_method(name: str) -> None:
    z = torch.randn(2, 10, 5, dtype=torch.float64, requires_grad=True)
    settings: dict[str, Any] = {"size": 5} if name == "w_mse" else {}
    criterion = Loss(nested(CATALOGUE[name], dims=(2, 4), weights=(3.0, 1.0)), **settings)
    single = Loss(CATALOGUE[name], **settings)
    torch.manual_seed(0)
    found = criterion(*z)
    torch.manual_seed(0)
    check(found, 3 * single(*z[..., :2]) + single(*z[..., :4]), z)


def test_text_settings_and_learned_temperatures() -> None:
    z = torch.randn(2, 8, 6, dtype=torch.float64, requires_grad=True)
    criterion = Loss(nested("simclr(temperature=0.2)", dims=(3, 6)))
    check(criterion(*z), sum((nt_xent(two_views(*z[..., :d]), temperature=0.2) for d in (3, 6)), torch.zeros(())), z)
    tau = learned(0.2).double()
    shared = Loss(nested(clip, dims=(3, 6)), temperature=tau)
    assert [name for name, _ in shared.named_parameters()] == [
        f"temperature.{name}" for name, _ in tau.named_parameters()
    ]
    check(shared(*z), clip(*z[..., :3], temperature=tau) + clip(*z, temperature=tau), z, *tau.parameters())


def test_what_is_added_sees_the_whole_embeddings() -> None:
    z = torch.randn(2, 8, 6, dtype=torch.float64, requires_grad=True)
    criterion = Loss(nested("simclr(temperature=0.2) + 0.5*koleo()", dims=(3,)))
    check(criterion(*z), nt_xent(two_views(*z[..., :3]), temperature=0.2) + 0.5 * koleo(*z), z)


def test_labels_targets_and_reductions_are_shared() -> None:
    z, g = torch.randn(2, 2, 6, 4, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    found = nested(supcon, dims=(2, 4))(views(z), labels=labels, reduction="none")
    assert found.shape == (12,)
    check(found, sum((supcon(views(z[..., :d]), labels=labels, reduction="none") for d in (2, 4)), torch.zeros(())), z)
    soft = nested("soft_nt_xent(temperature=0.2)", dims=(2, 4))(two_views(*z), targets=guide_targets(two_views(*g)))
    assert torch.isfinite(soft)


def test_two_tensors_and_embeddings() -> None:
    z = torch.randn(2, 8, 6, dtype=torch.float64, requires_grad=True)
    check(nested(siglip, dims=(4,))(*z), siglip(*z[..., :4]), z)
    check(nested(barlow_twins, dims=(4,))(*z), barlow_twins(*z[..., :4]), z)
    embeddings = Embeddings(z=z, compare=within_batch)
    check(nested(barlow_twins, dims=(4, 6))(embeddings), barlow_twins(*z[..., :4]) + barlow_twins(*z), z)


def test_half_precision_is_normalised_in_full() -> None:
    z = torch.randn(2, 16, 8).bfloat16()
    found = nested(nt_xent, dims=(4,))(two_views(*z), temperature=0.2)
    torch.testing.assert_close(found, nt_xent(two_views(*z[..., :4]), temperature=0.2), rtol=1e-5, atol=0)


def test_it_prints_and_travels() -> None:
    criterion = Loss(nested(nt_xent, dims=(2, 4)), temperature=0.2)
    assert "nt_xent" in repr(criterion)
    z = torch.randn(2, 6, 4)
    copy = pickle.loads(pickle.dumps(criterion))
    assert torch.equal(copy(*z), criterion(*z))


def test_sentence_transformers_computes_the_same() -> None:
    """Its loss of losses, around its own ranking loss, on embeddings that a model would return."""
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    z = torch.randn(2, 6, 8, dtype=torch.float64)
    ranking = MultipleNegativesRankingLoss(None, scale=20.0)
    theirs = sum(
        weight * ranking.compute_loss_from_embeddings([one[:, :width] for one in z], None)
        for width, weight in ((8, 1.0), (4, 0.5))
    )
    from contrapose.pairs import cross

    ours = nested(nt_xent, dims=(4, 8), weights=(0.5, 1.0))(cross(*z), temperature=0.05)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)


def test_bad_arguments_are_named() -> None:
    z = torch.randn(2, 6, 4)
    for arguments, message in (
        ({"dims": ()}, "dims: expected ascending widths"),
        ({"dims": (4, 2)}, r"dims: expected ascending widths such as \(64, 128, 256\), got \(4, 2\)"),
        ({"dims": (2, 2)}, "dims: expected ascending"),
        ({"dims": (0, 2)}, "dims: expected"),
        ({"dims": (2, 4), "weights": (1.0,)}, "weights: expected one for each of 2 widths, got 1"),
        ({"dims": (2,), "weights": (0.0,)}, "weights: expected"),
        ({"dims": (2, 5)}, "dims: expected widths up to 4, that of the embeddings, got 5"),
    ):
        with pytest.raises(ValueError, match=message):
            nested(nt_xent, **arguments)(two_views(*z))
    with pytest.raises(ValueError, match="similarity values have no coordinates"):
        nested(nt_xent, dims=(2,))(from_similarities(torch.rand(3), torch.rand(3, 2)))
    with pytest.raises(ValueError, match="expected similarity='cosine' or 'dot' for prefixes"):
        nested(nt_xent, dims=(2,))(two_views(*z, similarity="neg_euclid"))
    for name in ("sogclr", "swav", "fnc"):
        with pytest.raises(ValueError, match=f"objective: expected a loss of embeddings or pairs alone, got {name}"):
            nested(name, dims=(2,))
    with pytest.raises(ValueError, match="pairs: expected the result of two_views"):
        nested(nt_xent, dims=(2,))(z[0])
