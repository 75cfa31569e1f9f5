"""Regularisers: equal to lightly's, new directions in each step, and the statistic's value for a normal distribution."""

from __future__ import annotations

import math

import pytest
import torch

from contrapose.embeddings import Embeddings, within_batch
from contrapose.losses import Loss, StepCount, koleo, sigreg, spread_out
from contrapose.losses.regularisers import _directions
from contrapose.pairs import from_similarities, two_views


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("m", "d"), [(16, 5), (5, 16), (200, 3)])
@pytest.mark.parametrize(("eps", "tolerance"), [(0.0, 1e-12), (1e-8, 1e-5)])
def test_koleo_equals_lightly(m: int, d: int, eps: float, tolerance: float) -> None:
    """With ε > 0, lightly also adds it to each coordinate, which changes the digits after the fifth."""
    from lightly.loss import KoLeoLoss

    z = draw(2, m, d)
    results = []
    for loss in (lambda a, b: koleo(a, b, eps=eps), lambda a, b: (KoLeoLoss(eps=eps)(a) + KoLeoLoss(eps=eps)(b)) / 2):
        leaf = z.clone().requires_grad_()
        value = loss(*leaf)
        results.append((value.detach(), *torch.autograd.grad(value, leaf)))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def test_koleo_in_blocks_equals_the_whole_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    z = draw(2, 30, 4)
    whole = koleo(*z)
    monkeypatch.setattr("contrapose.losses.regularisers._BLOCK", 70)  # two rows at once
    assert torch.equal(koleo(*z), whole)


def test_a_sample_is_not_pushed_away_from_itself() -> None:
    """A sample that is in the batch twice: without ids its copy is the nearest neighbour, at distance 0."""
    z = draw(1, 4, 3).expand(1, 4, 3).repeat(1, 2, 1)
    ids = torch.arange(4).repeat(2)
    alone = koleo(Embeddings(z=z[:, :4], compare=within_batch))
    torch.testing.assert_close(koleo(Embeddings(z=z, compare=within_batch, ids=ids)), alone)
    assert koleo(Embeddings(z=z, compare=within_batch)) > 10


def test_equal_rows_have_a_finite_loss_and_gradient() -> None:
    z = torch.ones(2, 4, 3, requires_grad=True)
    value = koleo(*z)
    assert value.item() == pytest.approx(-math.log(1e-8))
    assert torch.isfinite(torch.autograd.grad(value, z)[0]).all()


def test_spread_out_is_the_second_moment() -> None:
    at = from_similarities(torch.tensor([[0.9]]), torch.tensor([[0.5, -0.5, 1.0]]))
    assert spread_out(at).item() == pytest.approx((0.25 + 0.25 + 1) / 3)
    # Random directions in d dimensions: 1/d.
    assert spread_out(two_views(*draw(2, 500, 10))).item() == pytest.approx(0.1, rel=0.05)


def test_directions_are_new_in_each_step_and_isotropic() -> None:
    z = draw(1, 6)
    first, second = _directions(z, 4000, 0), _directions(z, 4000, 1)
    torch.testing.assert_close(first.norm(dim=1), torch.ones(4000).double())
    assert float((first - second).abs().mean()) > 0.1
    for a in (first, second):
        assert float(a.mean(0).abs().max()) < 0.03
        torch.testing.assert_close(a.T @ a / 4000, torch.eye(6).double() / 6, rtol=0, atol=0.015)
    # The same on any device and for a step that is a tensor.
    assert torch.equal(_directions(z, 4000, torch.tensor(1)), second)


@pytest.mark.thorough
def test_sigreg_has_the_expected_value_for_a_normal_distribution() -> None:
    """E m|φ̂ - φ|² = 1 - φ², integrated with the weight φ over [-3, 3]: about 1.05."""
    t = torch.linspace(-3, 3, 10_001, dtype=torch.float64)
    expected = torch.trapezoid((1 - (-t.square()).exp()) * (-t.square() / 2).exp(), t)
    values = {name: sigreg(z, z).item() for name, z in (
        ("normal", draw(4000, 16)), ("scaled", 2 * draw(4000, 16)), ("shifted", draw(4000, 16) + 0.3),
        ("flat", draw(4000, 16) * torch.tensor([3.87] + [0.0] * 15)), ("collapsed", torch.zeros(4000, 16).double()),
    )}  # fmt: skip
    assert values["normal"] == pytest.approx(float(expected), rel=0.15)
    assert all(value > 20 * values["normal"] for name, value in values.items() if name != "normal"), values


def test_loss_counts_the_steps_of_sigreg() -> None:
    z = draw(2, 12, 6)
    criterion = Loss(sigreg, slices=8)
    assert isinstance(criterion.state, StepCount)
    for step in range(3):
        wanted = sigreg(*z, slices=8, step=step)
        assert torch.equal(criterion.eval()(*z), wanted)  # an evaluation counts no step
        assert torch.equal(criterion.train()(*z), wanted)
    assert sigreg(*z, slices=8, step=0) != sigreg(*z, slices=8, step=1)
    resumed = Loss("sigreg(slices=8)")
    resumed.load_state_dict(criterion.state_dict())
    assert torch.equal(resumed(*z), criterion(*z))


def test_koleo_of_one_sample() -> None:
    with pytest.raises(ValueError, match="ids: all 4 samples have the id 7: none has a neighbour"):
        Loss("koleo")(*torch.randn(2, 4, 8), ids=torch.full((4,), 7))
