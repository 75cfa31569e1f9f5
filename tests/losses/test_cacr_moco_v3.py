"""CACR's MoCo v3 form: half of MoCo v3 with two views, and losses on keys of global crops, on any number of processes."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from processes import run_in_process_group
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from contrapose.distributed import gather
from contrapose.embeddings import Embeddings, with_queue, within_batch
from contrapose.losses import (
    CATALOGUE,
    Loss,
    align_uniform,
    cacr,
    cacr_moco_v3,
    cmc,
    dcl,
    moco_v3,
    nt_xent,
    supcon,
)
from contrapose.losses.parse import parse
from contrapose.losses.trial import try_loss
from contrapose.pairs import two_views, views

VIEWS, SAMPLES, WIDTH = 4, 8, 6
COSTS = ("rbf", "euclidean")


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_two_views_are_half_of_moco_v3(temperature: float) -> None:
    z, keys = draw(2, 6, 4), draw(2, 6, 4, seed=1)
    results = []
    for loss, factor in ((cacr_moco_v3, 2.0), (moco_v3, 1.0)):
        leaf = z.clone().requires_grad_()
        value = factor * loss(views(leaf, keys=keys), temperature=temperature)
        results.append((value.detach(), *torch.autograd.grad(value, leaf)))
    torch.testing.assert_close(results[0], results[1], rtol=1e-12, atol=1e-12)


def test_full_mode_has_keys_of_all_views() -> None:
    z, keys = draw(3, 5, 4), draw(3, 5, 4, seed=1)
    both = [cacr_moco_v3(views(z, keys=of), temperature=0.3) for of in (keys, keys[:2])]
    assert all(bool(value.isfinite()) for value in both)
    assert float(both[0]) != float(both[1])


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_values_and_gradients_stay_finite(dtype: torch.dtype, cost: str) -> None:
    z, keys = torch.randn(VIEWS, 6, 4), torch.randn(2, 6, 4)
    same = z[:1, :1].expand(VIEWS, 6, 4)
    for kind, (queries, of) in {
        "random": (z, keys),
        "zeros": (torch.zeros_like(z), torch.zeros_like(keys)),
        "constant": (torch.full_like(z, 0.1), torch.full_like(keys, 0.1)),
        "one sample many times": (same, same[:2]),
        "opposite": (-keys[:1].expand(VIEWS, -1, -1), keys),
        "small": (z * 1e-3, keys * 1e-3),  # far smaller ones have gradients beyond fp16
    }.items():
        for temperature in (0.01, 1.0):
            leaf = queries.to(dtype).requires_grad_()
            value = cacr_moco_v3(views(leaf, keys=of.to(dtype)), temperature=temperature, cost=cost)
            value.backward()
            assert leaf.grad is not None
            assert bool(value.isfinite()), kind
            assert bool(leaf.grad.isfinite().all()), kind
            assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize("cost", COSTS)
def test_low_precision_ends_with_the_embeddings(cost: str) -> None:
    z, keys = torch.randn(VIEWS, 32, 16).bfloat16(), torch.randn(2, 32, 16).bfloat16()
    loss = partial(cacr_moco_v3, temperature=0.2, cost=cost)
    value = loss(views(z, keys=keys))
    assert float(value) == pytest.approx(float(loss(views(z.double(), keys=keys.double()))), rel=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(loss(views(z, keys=keys)), value)


def test_the_catalogue_and_the_parser() -> None:
    embeddings = Embeddings(z=draw(VIEWS, 6, 4), target=draw(2, 6, 4, seed=1), compare=within_batch)
    wanted = cacr_moco_v3(embeddings.pairs)
    assert torch.equal(Loss(CATALOGUE["cacr_moco_v3"])(embeddings), wanted)
    for text in ("cacr_moco_v3", "cacr_moco_v3(temperature=0.2)", "cacr_moco_v3(cost='euclidean')"):
        try_loss(parse(text))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("cacr_moco_v3(temperature=0)", "temperature: expected a number above 0, got 0.0"),
        ("cacr_moco_v3(cost='inner')", "cost: expected one of 'rbf', 'euclidean', got 'inner'"),
        ("cacr_moco_v3(t_neg=2)", "cacr_moco_v3 has the settings temperature, cost, negatives, got 't_neg'"),
    ],
)
def test_settings_out_of_range_are_refused(loss: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        try_loss(parse(loss))


def test_it_is_a_loss_of_unit_vectors() -> None:
    with pytest.raises(ValueError, match="cacr_moco_v3 is a loss of unit vectors, got 'dot'"):
        cacr_moco_v3(two_views(*torch.randn(2, 6, 4), similarity="dot"))


LOSSES: dict[str, Callable[..., Tensor]] = {
    **{f"cacr_moco_v3 {cost}": partial(cacr_moco_v3, temperature=0.3, cost=cost) for cost in COSTS},
    **{loss.__name__: loss for loss in (nt_xent, cacr, cmc, moco_v3, align_uniform, dcl)},
    "supcon": lambda pairs: supcon(pairs, labels=pairs.anchor_id % 3, temperature=0.2),
    "cacr queue": cacr,
    "nt_xent queue": nt_xent,
}


def train(net: nn.Module, rank: int, world: int, name: str) -> dict[str, Tensor]:
    """Train three steps; the keys are those of the first two views by a fixed network, as a momentum encoder makes them."""
    own = slice(rank * SAMPLES // world, (rank + 1) * SAMPLES // world)
    x = (draw(1, SAMPLES, WIDTH) + 0.5 * draw(VIEWS, SAMPLES, WIDTH, seed=1))[:, own]
    ids = torch.tensor([0, 1, 2, 3, 4, 5, 6, 0])[own]
    compare = with_queue(draw(5, 4, seed=2), batch=True) if name.endswith("queue") else within_batch
    optimiser, record = torch.optim.SGD(net.parameters(), lr=0.03), dict[str, Tensor]()
    for step in range(3):
        optimiser.zero_grad()
        keys = encoder(6)(x[:2]).detach()
        batch = Embeddings(z=gather(net(x), 1), target=gather(keys, 1), ids=gather(ids), compare=compare)
        loss = LOSSES[name](batch.pairs)
        loss.backward()
        record |= {f"loss {step}": loss.detach()}
        record |= {f"gradient {i}": p.grad.clone() for i, p in enumerate(net.parameters()) if p.grad is not None}
        optimiser.step()
    return record


def encoder(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(WIDTH, 7), nn.Tanh(), nn.Linear(7, 4)).double()


def work(rank: int, world: int, out: str) -> None:
    records = {name: train(DistributedDataParallel(encoder(5)), rank, world, name) for name in LOSSES}
    if rank == world - 1:
        torch.save(records, out)


@pytest.mark.thorough
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_several_processes_equal_one(world: int, tmp_path: Path) -> None:
    run_in_process_group(work, world, tmp_path / "records")
    records = torch.load(tmp_path / "records", weights_only=True)
    for name in LOSSES:
        for what, expected in train(encoder(5), 0, 1, name).items():
            difference = float((records[name][what] - expected).abs().max())
            assert difference <= 1e-12 * max(1.0, float(expected.abs().max())), (name, what)
