"""Loss, gradients and training on 1, 2 and 4 processes, with different data on each, equal those of one process."""

from __future__ import annotations

import resource
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from conftest import FULL, Promise
from processes import run_in_process_group
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from contrapose.distributed import gather
from contrapose.losses import (
    balanced,
    cacr,
    clip,
    dclw,
    fastclip,
    fnc,
    margin_mse,
    nt_xent,
    siglip,
    soft_nt_xent,
    sogclr,
    spread_out,
    supcon,
)
from contrapose.pairs import Pairs, cross, guide_targets, guided, self_guided, two_views, views
from contrapose.pairs.negatives import hardest
from contrapose.temperature import arctanh, cosine, learned, learned_number

IMAGES, WIDTH = 8, 6
STEPS = 20 if FULL else 8  # eight take every way through `train` twice


def guide() -> Pairs:
    """Return pairs of another model's embeddings, which every process has."""
    return two_views(
        *torch.randn(2, IMAGES, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(8)), ids=data()[2]
    )


def support(pairs: Pairs) -> Tensor:
    """Further views of the samples."""
    samples = len(pairs.anchor) // pairs.view_count
    return torch.randn(3, samples, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(9))


LOSSES: dict[str, Callable[..., Tensor]] = {
    "nt_xent": lambda pairs: nt_xent(pairs, temperature=0.2),
    "dystress": lambda pairs: nt_xent(pairs, temperature=cosine(0.07, 0.2)),
    "hard": lambda pairs: nt_xent(pairs, temperature=0.3, negatives=hardest(5)),
    "per anchor": lambda pairs: nt_xent(
        pairs, temperature=torch.linspace(0.1, 1.0, pairs.shape[0], dtype=torch.float64)
    ),
    "sogclr per anchor": lambda pairs: sogclr(
        pairs, temperature=torch.linspace(0.1, 1.0, pairs.shape[0], dtype=torch.float64)
    ),
    "dclw": dclw,
    "cacr": cacr,
    "balanced": balanced,
    "clip": clip,
    "clip symmetric learned": clip,
    "siglip joint learned": siglip,
    "siglip symmetric negatives learned": siglip,
    "self guided": lambda pairs: nt_xent(pairs, temperature=0.2, negatives=self_guided(margin=0.1)),
    "siglip symmetric relative learned": lambda pairs, bias, **settings: siglip(pairs, relative_bias=bias, **settings),
    "fastclip learned": partial(fastclip, rho=1.5),
    "arctanh": lambda pairs: nt_xent(pairs, temperature=arctanh()),
    "spread out": spread_out,
    "guided": lambda pairs: nt_xent(pairs, temperature=0.2, negatives=guided(guide(), margin=0.1)),
    "soft": lambda pairs: soft_nt_xent(pairs, targets=guide_targets(guide()), form="kl", temperature=cosine(0.07, 0.2)),
    "margins": lambda pairs: margin_mse(pairs, targets=guide_targets(guide())),
    "supcon": lambda pairs: supcon(pairs, labels=pairs.anchor_id % 3, temperature=0.2),
    "supcon in": lambda pairs: supcon(
        pairs, labels=pairs.anchor_id % 3, form="in", temperature=cosine(0.07, 0.2), negatives=hardest(0.5)
    ),
    "fnc": lambda pairs: fnc(pairs, support=support(pairs), top=3, threshold=0.3, temperature=0.2),
    "fnc symmetric negatives": lambda pairs: fnc(
        pairs, support=support(pairs), form="elimination", top=3, threshold=0.3, temperature=0.2
    ),
}


def data() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x1 = torch.randn(IMAGES, WIDTH, dtype=torch.float64, generator=generator)
    x2 = x1 + 0.3 * torch.randn(IMAGES, WIDTH, dtype=torch.float64, generator=generator)
    return x1, x2, torch.tensor([0, 1, 2, 3, 4, 5, 6, 0])  # image 0 is on the first and on the last process


class WithLearned(nn.Module):
    """An encoder that also returns the settings that are learned with it, under DistributedDataParallel like the rest."""

    def __init__(self, encoder: nn.Module, **settings: nn.Module) -> None:
        super().__init__()
        self.encoder, self.settings = encoder, nn.ModuleDict(settings)

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return self.encoder(x), {name: setting() for name, setting in self.settings.items()}


def encoder(name: str) -> nn.Module:
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(WIDTH, 7), nn.Tanh(), nn.Linear(7, 4)).double()
    bias = {"bias": learned_number(-2.0)} if "siglip" in name else {}
    return WithLearned(net, **({"temperature": learned(0.2, low=0.1), **bias} if "learned" in name else {})).double()


def compare(z: Tensor, ids: Tensor, step: int, name: str, group: dist.ProcessGroup | None = None) -> Pairs:
    a, b, ids = (gather(x, group=group) for x in (z[0], z[1], ids))
    explicit: dict[str, Any] = (
        {"negatives": a.flip(0) + 0.1, "negative_ids": ids.flip(0)} if "negatives" in name else {}
    )
    if "symmetric" in name:
        return cross(a, b, ids=ids, symmetric=True, **explicit)
    if "joint" in name:
        return cross(a, b, ids=ids, directions=("a_to_b", "a_to_a", "b_to_a", "b_to_b"))
    return two_views(a, b, ids=ids) if step % 2 else views(gather(z, 1, group=group), ids=ids)


def train(net: nn.Module, rank: int, world: int, name: str) -> dict[str, Tensor]:
    own = slice(rank * IMAGES // world, (rank + 1) * IMAGES // world)
    x1, x2, ids = (x[own] for x in data())
    optimiser = torch.optim.SGD(net.parameters(), lr=0.03)
    record: dict[str, Tensor] = {}
    for step in range(STEPS):
        optimiser.zero_grad()
        z, settings = net(torch.stack([x1, x2]))
        pairs = compare(z, ids, step, name)
        loss = LOSSES[name](pairs.sharded() if step % 4 > 1 or step == 0 else pairs, **settings)
        loss.backward()
        if step == 0:
            record["loss"] = loss.detach()
            record |= {f"gradient {i}": p.grad.clone() for i, p in enumerate(net.parameters()) if p.grad is not None}
        optimiser.step()
    return record | {f"weight {i}": p.detach() for i, p in enumerate(net.parameters())}


def work(rank: int, world: int, out: str) -> None:
    records = {name: train(DistributedDataParallel(encoder(name)), rank, world, name) for name in LOSSES}
    if rank == 0:
        torch.save(records, out)


# Ranks of the two groups of four processes: not in a row, so that a rank in the group is not the rank in the world.
GROUPS = ((0, 2), (1, 3))
IN_GROUPS = (
    "nt_xent",
    "sogclr per anchor",
    "cacr",
    "clip symmetric learned",
    "siglip joint learned",
    "supcon in",
    "fnc",
)


def rows_of(*ranks: int) -> Tensor:
    """Return the indices of the images of these ranks, two each."""
    return torch.cat([torch.arange(2 * rank, 2 * rank + 2) for rank in ranks])


def train_in_groups(name: str, rank: int, group: dist.ProcessGroup | None) -> dict[str, Tensor]:
    """Train three steps, with a loss for each group: in a process of four, or for both groups at once without `group`."""
    net = encoder(name) if group is None else DistributedDataParallel(encoder(name))
    optimiser, record = torch.optim.SGD(net.parameters(), lr=0.03), dict[str, Tensor]()
    own = [rows_of(*ranks) for ranks in GROUPS] if group is None else [rows_of(rank)]
    for step in range(3):
        optimiser.zero_grad()
        losses = []
        for rows in own:
            x1, x2, ids = (x[rows] for x in data())
            z, settings = net(torch.stack([x1, x2]))
            pairs = compare(z, ids, step, name, group)
            losses.append(LOSSES[name](pairs if step == 1 else pairs.sharded(group), **settings))
        torch.stack(losses).mean().backward()
        record |= {
            f"step {step} gradient {i}": p.grad.clone() for i, p in enumerate(net.parameters()) if p.grad is not None
        }
        optimiser.step()
    return record


def grouped(rank: int, world: int, out: str) -> None:
    # In a process outside of the group torch returns a number.
    groups = [cast(dist.ProcessGroup, dist.new_group(list(ranks))) for ranks in GROUPS]
    mine, other = groups[rank % 2], groups[1 - rank % 2]
    try:
        gather(torch.zeros(2, 3), group=other)
    except ValueError as error:
        Path(f"{out}.{rank}").write_text(str(error))
    records = {name: train_in_groups(name, rank, mine) for name in IN_GROUPS}
    try:
        gather(torch.zeros(2 + rank, 3), group=mine)
    except ValueError as error:
        Path(f"{out}.unequal.{rank}").write_text(str(error))
    z = torch.randn(2, 3, requires_grad=True)
    try:
        torch.autograd.grad(gather(z, group=mine).square().sum(), z, create_graph=True)
    except RuntimeError as error:
        Path(f"{out}.second.{rank}").write_text(str(error))
    if rank == 3:
        torch.save(records, out)


def large(rank: int, world: int, out: str) -> None:
    """16,384 anchors in total: the matrix would take 1 GiB, and half of that on each of two processes."""
    step(64, rank)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step(8192 // world, rank)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    Path(f"{out}.{rank}").write_text(str(grown))


def step(m: int, rank: int) -> None:
    z = torch.randn(2, m, 32, generator=torch.Generator().manual_seed(rank)).requires_grad_()
    nt_xent(views(gather(z, 1)).sharded(), temperature=0.2).backward()
    assert z.grad is not None


def faulty(rank: int, world: int, out: str) -> None:
    """Only the last process has anchors with too few negatives; all processes must raise, and none may hang."""
    a, b = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(rank))
    ids = torch.arange(4) if rank == 0 else torch.full((4,), 9)
    try:
        nt_xent(cross(gather(a), gather(b), ids=gather(ids)).sharded(), negatives=hardest(5, strict=True))
    except ValueError as error:
        Path(f"{out}.{rank}").write_text(str(error))


def unequal(rank: int, world: int, out: str) -> None:
    try:
        gather(torch.zeros(2 + rank, 3))
    except ValueError as error:
        Path(f"{out}.{rank}").write_text(str(error))


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "world",
    [
        pytest.param(1, marks=pytest.mark.slow),
        pytest.param(2, marks=pytest.mark.thorough),
        pytest.param(4, marks=pytest.mark.thorough),
    ],
)
def test_several_processes_equal_one(world: int, tmp_path: Path, promise: Promise) -> None:
    run_in_process_group(work, world, tmp_path / "records")
    records = torch.load(tmp_path / "records", weights_only=True)
    for name in LOSSES:
        for what, expected in train(encoder(name), 0, 1, name).items():
            promise.case(float((records[name][what] - expected).abs().max()))
            assert promise.worst <= 1e-12, (name, what)


@pytest.mark.thorough
@pytest.mark.filterwarnings("default")
def test_a_loss_in_each_group_of_processes(tmp_path: Path, promise: Promise) -> None:
    """Four processes in two groups train as one process with the mean of both groups' losses."""
    run_in_process_group(grouped, 4, tmp_path / "records")
    records = torch.load(tmp_path / "records", weights_only=True)
    for name in IN_GROUPS:
        expected = train_in_groups(name, 0, None)
        assert records[name].keys() == expected.keys()
        for what, value in expected.items():
            promise.case(float((records[name][what] - value).abs().max()))
            assert promise.worst <= 1e-12, (name, what)
    for rank in range(4):
        assert (tmp_path / f"records.{rank}").read_text().endswith(f"got one without rank {rank}")
        assert "same shape on every process" in (tmp_path / f"records.unequal.{rank}").read_text()
        assert "no second derivative" in (tmp_path / f"records.second.{rank}").read_text()


def empty_later(rank: int, world: int, out: str) -> None:
    """The first process has no rows in the third step; the other one cannot know that it will."""
    rows = torch.randn(4, 20)
    for step in range(3):
        try:
            found = f"NaN: {bool(gather(rows[:0] if rank == 0 and step == 2 else rows).isnan().any())}"
        except ValueError as error:
            found = str(error)
    Path(f"{out}.{rank}").write_text(found)


@pytest.mark.thorough
@pytest.mark.filterwarnings("default")
def test_a_process_whose_batch_is_empty(tmp_path: Path) -> None:
    run_in_process_group(empty_later, 2, tmp_path / "found")
    assert "same shape on every process, got [(0, 20), (4, 20)]" in (tmp_path / "found.0").read_text()
    assert (tmp_path / "found.1").read_text() == "NaN: True"


@pytest.mark.thorough
@pytest.mark.filterwarnings("default")
def test_no_process_stores_the_matrix(tmp_path: Path) -> None:
    run_in_process_group(large, 2, tmp_path / "grown")
    for rank in range(2):
        assert int((tmp_path / f"grown.{rank}").read_text()) < 200


@pytest.mark.thorough
@pytest.mark.filterwarnings("default")
def test_an_error_on_one_process_is_raised_on_all(tmp_path: Path) -> None:
    run_in_process_group(faulty, 2, tmp_path / "error")
    messages = [(tmp_path / f"error.{rank}").read_text() for rank in range(2)]
    assert "another process" in messages[0]
    assert "needs 5 negatives for every anchor, but an anchor has 4" in messages[1]


@pytest.mark.filterwarnings("default")
def test_unequal_batches_raise(tmp_path: Path) -> None:
    run_in_process_group(unequal, 2, tmp_path / "error")
    for rank in range(2):
        message = (tmp_path / f"error.{rank}").read_text()
        assert "same shape on every process" in message
        assert "(2, 3)" in message


def test_one_process_needs_no_group() -> None:
    z = torch.randn(3, 4, requires_grad=True)
    assert gather(z) is z
