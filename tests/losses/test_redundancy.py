"""The losses of redundancy equal plain loops and lightly's, in value and gradient, on any number of processes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redundancy_oracles as plain
import torch
from commands import error_message
from processes import run_in_process_group
from redundancy_oracles import Oracle
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from contrapose.distributed import gather
from contrapose.embeddings import Embeddings, within_batch
from contrapose.losses import CATALOGUE, FeatureOrder, Loss, arb, barlow_twins, koleo, sigreg, vicreg, w_mse, zero_cl
from contrapose.losses.objective import with_state
from contrapose.losses.parse import parse
from contrapose.losses.regularisers import _directions
from contrapose.losses.trial import try_loss
from contrapose.metrics import penalties
from contrapose.pairs import two_views

TOLERANCE = 1e-10
NAMES = ("barlow_twins", "vicreg", "w_mse", "zero_cl", "zero_fcl", "zero_icl", "arb")


@dataclass(frozen=True)
class Case:
    """A loss of embeddings, its oracle for m samples of d features, and whether nothing is under a stop-gradient."""

    name: str
    loss: Callable[..., Tensor]
    oracle: Callable[[int, int], Oracle]
    smooth: bool = True
    wide: bool = True  # whether it is defined for fewer samples than features


def interleaved(d: int) -> Tensor:
    return torch.cat([torch.arange(0, d, 2), torch.arange(1, d, 2)])


CASES = [
    Case("barlow twins", partial(barlow_twins, weight=0.1), lambda m, d: plain.barlow_twins(0.1)),
    Case("vicreg", vicreg, lambda m, d: plain.vicreg(25.0, 25.0, 1.0)),
    Case("vicreg weights", partial(vicreg, invariance_weight=2.0, variance_weight=3.0, covariance_weight=5.0),
         lambda m, d: plain.vicreg(2.0, 3.0, 5.0)),
    Case("w-mse", w_mse, lambda m, d: plain.w_mse(slice(None)), wide=False),
    Case("w-mse sub-batches", partial(w_mse, size=5), lambda m, d: plain.w_mse(slice(6), slice(6, None)), wide=False),
    Case("w-mse shrunk", partial(w_mse, shrinkage=0.3), lambda m, d: plain.w_mse(slice(None), shrinkage=0.3)),
    Case("zero-cl", zero_cl, lambda m, d: plain.zero_cl("joint", 0.01), smooth=False),
    Case("zero-fcl", partial(zero_cl, form="feature"), lambda m, d: plain.zero_cl("feature", 0.01), smooth=False),
    Case("zero-icl", partial(zero_cl, form="instance", ridge=0.1), lambda m, d: plain.zero_cl("instance", 0.1),
         smooth=False),
    Case("arb", arb, lambda m, d: plain.arb(list(range(d)), ridge=1e-5), smooth=False),
    Case("arb groups", lambda *z: arb(*z, group_size=2, order=interleaved(z[0].shape[1])),
         lambda m, d: plain.arb(*([int(k) for k in group] for group in interleaved(d).tensor_split(d // 2)), ridge=1e-5),
         smooth=False),
    Case("koleo", koleo, lambda m, d: plain.koleo(1e-8)),
    Case("koleo with a margin", partial(koleo, eps=0.3), lambda m, d: plain.koleo(0.3)),
    Case("sigreg", partial(sigreg, slices=5, points=9, limit=2.5, step=3),
         lambda m, d: plain.sigreg(_directions(draw(1, d), 5, 3).tolist(), 9, 2.5)),
]  # fmt: skip


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def with_gradient(loss: Callable[..., Tensor], z: Tensor) -> tuple[Tensor, Tensor]:
    leaf = z.detach().clone().requires_grad_()
    value = loss(*leaf)
    (gradient,) = torch.autograd.grad(value, leaf)
    return value.detach(), gradient


@pytest.mark.parametrize(("m", "d"), [(12, 4), (4, 7), (12, 12)])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "_"))
def test_value_and_gradient_equal_plain_loops(case: Case, m: int, d: int) -> None:
    if m <= d and not case.wide:
        return
    z = draw(2, m, d, seed=m)
    value, gradient = with_gradient(case.loss, z)
    oracle, rows = case.oracle(m, d), [[[complex(x) for x in row] for row in view] for view in z.tolist()]
    assert float(value) == pytest.approx(plain.value(oracle, rows), rel=TOLERANCE)
    if m * d < 100:  # each coordinate costs the loops once
        expected = torch.tensor(plain.gradient(oracle, rows), dtype=torch.float64)
        torch.testing.assert_close(gradient, expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("case", [case for case in CASES if case.smooth], ids=lambda case: case.name.replace(" ", "_"))
def test_gradcheck(case: Case) -> None:
    leaves = tuple(view.clone().requires_grad_() for view in draw(2, 12, 3))
    assert torch.autograd.gradcheck(case.loss, leaves)


@pytest.mark.parametrize("name", NAMES)
def test_several_views_are_the_mean_over_pairs(name: str) -> None:
    z, loss = draw(3, 6, 4), Loss(CATALOGUE[name])
    pairs = torch.stack([loss(z[v], z[w]) for v, w in ((0, 1), (0, 2), (1, 2))])
    torch.testing.assert_close(loss(z), pairs.mean(), rtol=1e-12, atol=0.0)


@pytest.mark.parametrize(("m", "d"), [(16, 5), (5, 16)])
def test_equal_to_lightly(m: int, d: int) -> None:
    from lightly.loss import BarlowTwinsLoss, VICRegLoss
    from lightly.loss.wmse_loss import WMSELoss

    def their_w_mse(z1: Tensor, z2: Tensor) -> Tensor:
        loss: Tensor = WMSELoss(embedding_dim=5, w_size=16).double()(torch.cat([z1, z2]))
        return loss

    peers: list[tuple[Any, Any]] = [(barlow_twins, BarlowTwinsLoss()), (vicreg, VICRegLoss())]
    for ours, theirs in [*peers, *([(w_mse, their_w_mse)] if m > d else [])]:
        for one, other in zip(with_gradient(ours, draw(2, m, d)), with_gradient(theirs, draw(2, m, d)), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def extremes(m: int, d: int) -> dict[str, Tensor]:
    z = torch.randn(2, m, d)
    return {
        "random": z,
        "zeros": torch.zeros(2, m, d),
        "constant": torch.full((2, m, d), 0.1),  # not a number of float32, so that means are off by rounding
        "one constant feature": torch.cat([z[..., 1:], torch.ones(2, m, 1)], -1),
        "one sample many times": z[:, :1].expand(2, m, d),
        "one feature many times": z[..., :1].expand(2, m, d),
        "one direction": z[..., :1] * torch.randn(2, 1, d),
        "far from the origin": z[..., :1] * torch.randn(2, 1, d) + 100,
        "opposite views": torch.stack([z[0], -z[0]]),
        "equal views": torch.stack([z[0], z[0]]),
        "scales": z * torch.logspace(-6, 2, d),
        "small": z * 1e-9,
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize(("m", "d"), [(64, 8), (4, 32), (64, 64), (2, 3), (33, 128)])
def test_values_and_gradients_stay_finite(m: int, d: int, dtype: torch.dtype) -> None:
    for kind, z in extremes(m, d).items():
        for name in NAMES:
            leaf = z.to(dtype).requires_grad_()
            value = Loss(CATALOGUE[name])(leaf)
            value.backward()
            assert leaf.grad is not None
            assert bool(value.isfinite()), (name, kind)
            assert bool(leaf.grad.isfinite().all()), (name, kind)
            assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize("name", NAMES)
def test_low_precision_ends_with_the_embeddings(name: str) -> None:
    rounded, loss = torch.randn(2, 64, 16).bfloat16(), Loss(CATALOGUE[name])
    value = loss(rounded)
    assert float(value) == pytest.approx(float(loss(rounded.double())), rel=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(loss(rounded), value)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("m", "d"), [(8, 5), (4, 9)])
def test_nan_is_propagated(name: str, m: int, d: int) -> None:
    for bad in (torch.nan, torch.inf):
        z = torch.randn(2, m, d)
        z[0, 3, 2] = bad
        assert bool(Loss(CATALOGUE[name])(z).isnan())


def test_called_with_two_views_or_embeddings() -> None:
    z = draw(2, 6, 4)
    embeddings = Embeddings(z=z, compare=within_batch)
    losses: tuple[Any, ...] = (barlow_twins, vicreg, w_mse, zero_cl, arb)
    for loss in losses:
        wanted = loss(*z)
        assert torch.equal(loss(embeddings), wanted)
        for criterion in (Loss(loss), Loss(CATALOGUE[loss.__name__])):
            assert all(torch.equal(value, wanted) for value in (criterion(*z), criterion(z), criterion(embeddings)))
        with pytest.raises(ValueError, match=rf"got Tensor; for two views write {loss.__name__}\(z1, z2\)"):
            loss(z)
        with pytest.raises(ValueError, match=r"z2: expected the shape of z1, \(6, 4\), got \(5, 4\)"):
            loss(z[0], z[1, :5])
        with pytest.raises(ValueError, match="expected at least two views of two samples"):
            loss(z[0, :1], z[1, :1])
        with pytest.raises(ValueError, match="target: this loss compares views from one network"):
            loss(Embeddings(z=z, target=z, compare=within_batch))


def test_there_are_no_similarities_to_explain(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        ValueError, match="got Similarities: it is not a loss of similarities; for two views write vicreg"
    ):
        penalties(vicreg, two_views(*torch.randn(2, 6, 4)))  # type: ignore[arg-type]
    message = error_message(capsys, "explain", "barlow_twins")
    assert "loss: barlow_twins is not a loss of similarities" in message
    assert message.count("\n") == 1


def test_the_catalogue_and_the_parser() -> None:
    assert parse("zero_icl").keywords == {"form": "instance", "ridge": 0.01}
    assert parse("vicreg(variance_weight=10)").keywords["variance_weight"] == 10
    chosen, state = with_state(parse("arb(group_size=256)"), 100)
    assert isinstance(state, FeatureOrder)
    assert chosen.keywords == {"ridge": 1e-5, "group_size": 256}
    assert with_state(parse("arb"), 100)[1] is None
    for text in (*NAMES, "arb(group_size=256)", "w_mse(size=3)"):
        try_loss(parse(text))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("barlow_twins(weight=-1)", "weight: expected a number of at least 0, got -1.0"),
        ("barlow_twins(temperature=0.5)", "barlow_twins has the settings weight, got 'temperature'"),
        ("vicreg(invariance_weight='x')", "invariance_weight: expected a finite number, got 'x'"),
        ("w_mse(size=1)", "size: expected a whole number of at least 2, got 1"),
        ("w_mse(shrinkage=2)", "shrinkage: expected a number of at most 1, got 2.0"),
        ("zero_cl(form='both')", "form: expected one of 'joint', 'feature', 'instance', got 'both'"),
        ("zero_cl(ridge=0)", "ridge: expected a number above 0, got 0.0"),
        ("arb(group_size=1.5)", "group_size: expected a whole number of at least 1, got 1.5"),
        ("arb(order=3)", "arb has the settings group_size, ridge, got 'order'"),
    ],
)
def test_settings_out_of_range_are_refused(loss: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        try_loss(parse(loss))


def test_features_are_shuffled_in_each_step() -> None:
    z, state = draw(2, 12, 6), FeatureOrder()
    criterion = Loss(arb, group_size=2, state=state)
    orders = []
    for _ in range(3):
        orders.append(state.settings(Embeddings(z=z, compare=within_batch))["order"])
        wanted = arb(*z, group_size=2, order=orders[-1])
        assert torch.equal(criterion.eval()(*z), wanted)  # an evaluation counts no step
        assert torch.equal(criterion.train()(*z), wanted)
    assert not torch.equal(orders[0], orders[1])
    assert all(sorted(order.tolist()) == list(range(6)) for order in orders)
    assert int(criterion.state_dict()["state.step"]) == 3


SAMPLES, STEPS = 8, 5
LOSSES: dict[str, Callable[[], Loss]] = {
    **{name: partial(Loss, CATALOGUE[name]) for name in NAMES},
    "w_mse of parts": partial(Loss, w_mse, size=4),  # over the boundaries of processes
    "arb of groups": lambda: Loss(arb, group_size=2, state=FeatureOrder()),
    "koleo": partial(Loss, koleo),
    "sigreg": partial(Loss, sigreg, slices=8),
    "a sum": partial(Loss, "barlow_twins + 0.1*koleo() + 0.5*sigreg(slices=8)"),
}


def train(net: nn.Module, rank: int, world: int, criterion: Loss) -> dict[str, Tensor]:
    own = slice(rank * SAMPLES // world, (rank + 1) * SAMPLES // world)
    x = draw(1, SAMPLES, 6).expand(2, -1, -1) + 0.3 * draw(2, SAMPLES, 6, seed=1)
    optimiser, record = torch.optim.SGD(net.parameters(), lr=1e-3), dict[str, Tensor]()
    for step in range(STEPS):
        optimiser.zero_grad()
        loss = criterion(gather(net(x[:, own]), 1))
        loss.backward()
        record |= {f"loss {step}": loss.detach()}
        if step == 0:
            record |= {f"gradient {i}": p.grad.clone() for i, p in enumerate(net.parameters()) if p.grad is not None}
        optimiser.step()
    return record | {f"weight {i}": p.detach() for i, p in enumerate(net.parameters())}


def encoder() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 4)).double()


def work(rank: int, world: int, out: str) -> None:
    records = {
        name: train(DistributedDataParallel(encoder()), rank, world, criterion()) for name, criterion in LOSSES.items()
    }
    if rank == world - 1:
        torch.save(records, out)


@pytest.mark.thorough
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_several_processes_equal_one(world: int, tmp_path: Path) -> None:
    run_in_process_group(work, world, tmp_path / "records")
    records = torch.load(tmp_path / "records", weights_only=True)
    for name, criterion in LOSSES.items():
        for what, expected in train(encoder(), 0, 1, criterion()).items():
            assert float((records[name][what] - expected).abs().max()) <= 1e-12 * max(
                1.0, float(expected.abs().max())
            ), (
                name,
                what,
            )
