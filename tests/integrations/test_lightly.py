"""`integrations.lightly` beside lightly itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightly.loss import NTXentLoss as Reference
from processes import run_in_process_group
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.parallel import DistributedDataParallel

from contrapose import CATALOGUE, cosine, dcl, hardest, nt_xent, two_views
from contrapose.integrations.lightly import NTXentLoss

Criterion = Callable[[Tensor, Tensor], Tensor]


def two(m: int = 6, d: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randn(2, m, d, dtype=torch.float64, generator=generator)
    return a.requires_grad_(), b.requires_grad_()


def value_and_gradients(criterion: Criterion, *inputs: Tensor) -> list[Tensor]:
    loss = criterion(*inputs)
    return [loss.detach(), *torch.autograd.grad(loss, [z for z in inputs if z.requires_grad])]


def assert_equal(ours: list[Tensor], theirs: list[Tensor], tolerance: float = 1e-12) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("temperature", [0.05, 0.5, 2.0])
def test_value_and_gradients_equal_lightlys(temperature: float) -> None:
    ours, theirs = NTXentLoss(temperature=temperature), Reference(temperature=temperature)
    assert_equal(value_and_gradients(ours, *two()), value_and_gradients(theirs, *two()))


def test_defaults_equal_lightlys() -> None:
    assert_equal(value_and_gradients(NTXentLoss(), *two()), value_and_gradients(Reference(), *two()))


@pytest.mark.parametrize("keys_have_gradient", [False, True])
def test_memory_bank_equals_lightlys(keys_have_gradient: bool) -> None:
    torch.manual_seed(7)
    ours = NTXentLoss(temperature=0.2, memory_bank_size=(16, 5)).double()
    torch.manual_seed(7)
    theirs = Reference(temperature=0.2, memory_bank_size=(16, 5)).double()
    for step in range(6):  # 6 rows at a time: the bank of 16 is filled twice, the last batch of each only in part
        queries, keys = two(seed=step)
        keys = keys if keys_have_gradient else keys.detach()
        assert_equal(value_and_gradients(ours, queries, keys), value_and_gradients(theirs, queries, keys), 1e-6)
        torch.testing.assert_close(ours.bank, theirs.memory_bank.bank)
        assert int(ours.bank_ptr) == int(theirs.memory_bank.bank_ptr)


def test_evaluation_does_not_change_the_bank() -> None:
    criterion = NTXentLoss(memory_bank_size=(16, 5)).double()
    before = criterion.bank.clone()
    criterion(*(z.detach() for z in two()))
    assert torch.equal(criterion.bank, before)


def test_the_bank_is_restored_from_state_dict() -> None:
    criterion, resumed = (NTXentLoss(memory_bank_size=(16, 5)).double() for _ in range(2))
    criterion(*two())
    resumed.load_state_dict(criterion.state_dict())
    assert torch.equal(criterion(*two(seed=1)), resumed(*two(seed=1)))


@pytest.mark.parametrize(
    ("criterion", "expected"),
    [
        (NTXentLoss(cosine(0.07, 0.2)), lambda p: nt_xent(p, temperature=cosine(0.07, 0.2))),
        (NTXentLoss(0.2, negatives=hardest(3)), lambda p: nt_xent(p, temperature=0.2, negatives=hardest(3))),
        (NTXentLoss(0.2, objective=dcl), lambda p: dcl(p, temperature=0.2)),
        (NTXentLoss(objective="dystress"), CATALOGUE["dystress"]()),
        (NTXentLoss(objective=CATALOGUE["cacr"]), CATALOGUE["cacr"]()),
        (NTXentLoss(objective="nt_xent(temperature=0.3)"), lambda p: nt_xent(p, temperature=0.3)),
    ],
)
def test_any_objective(criterion: NTXentLoss, expected: Callable[[Any], Tensor]) -> None:
    assert torch.equal(criterion(*two()), expected(two_views(*two())))


def test_equal_ids_are_no_negatives() -> None:
    ids = torch.tensor([0, 1, 2, 3, 4, 0])
    assert torch.equal(NTXentLoss(0.2)(*two(), ids=ids), nt_xent(two_views(*two(), ids=ids), temperature=0.2))


def test_a_guide_gives_soft_targets() -> None:
    """Against the whole matrices: for each view, the other views of the batch, its own row left out."""
    z0, z1 = two()
    guide = [g.detach() for g in two(d=7, seed=1)]
    found = value_and_gradients(
        lambda a, b: NTXentLoss(0.3, objective="soft_nt_xent", guide_temperature=0.2)(a, b, guide=guide), z0, z1
    )

    def dense(a: Tensor, b: Tensor) -> Tensor:
        own, judged = (normalize(torch.cat(rows)) for rows in ((a, b), guide))
        itself = torch.eye(len(own), dtype=torch.bool)
        s, g = ((z @ z.T / tau).masked_fill(itself, -torch.inf) for z, tau in ((own, 0.3), (judged, 0.2)))
        return -(g.softmax(1) * s.log_softmax(1).masked_fill(itself, 0.0)).sum(1).mean()

    assert_equal(found, value_and_gradients(dense, z0, z1))


def test_a_guide_that_does_not_fit_is_refused() -> None:
    soft: dict[str, Any] = {"objective": "soft_nt_xent"}
    with pytest.raises(ValueError, match="guide: expected the embeddings of a guide, since soft_nt_xent has soft"):
        NTXentLoss(0.2, **soft)(*two())
    with pytest.raises(ValueError, match='guide: expected an objective with soft targets, such as "soft_nt_xent"'):
        NTXentLoss(0.2)(*two(), guide=two(seed=1))
    with pytest.raises(ValueError, match="guide: expected None with a memory bank"):
        NTXentLoss(0.2, memory_bank_size=(16, 5), **soft).double()(*two(), guide=two(seed=1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"memory_bank_size": 4096},
            r"memory_bank_size: expected 0 or \(rows, width\) such as \(4096, 128\), got 4096",
        ),
        ({"objective": "isogclr"}, "isogclr needs a value for each sample"),
        ({"objective": "simclr + 0.1*koleo()"}, "expected an objective of pairs, got koleo, which takes embeddings"),
        ({"objective": "supcon"}, "supcon needs a value for each sample"),
        ({"objective": "tau"}, "tau needs a value for each sample"),
        ({"objective": "nt_xnet"}, "did you mean 'nt_xent'"),
        ({"objective": "cacr", "temperature": 0.1}, "temperature: cacr has the settings"),
        ({"beta": 1.0}, "beta: nt_xent has the settings"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NTXentLoss(**arguments)


def gradients(criterion: Criterion, net: nn.Module, rank: int, world: int) -> list[Tensor]:
    own = slice(rank * 6 // world, (rank + 1) * 6 // world)
    loss = criterion(*(net(z.detach()[own]) for z in two()))
    net.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in net.parameters() if p.grad is not None]


def linear() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(5, 4).double()


def guided_by_raw_inputs(gather_distributed: bool, rank: int, world: int) -> Criterion:
    criterion = NTXentLoss(0.2, objective="soft_nt_xent", gather_distributed=gather_distributed)
    own = slice(rank * 6 // world, (rank + 1) * 6 // world)
    return lambda a, b: criterion(a, b, guide=[z.detach()[own] for z in two()])


def work(rank: int, world: int, out: str) -> None:
    ours, theirs = (of(temperature=0.2, gather_distributed=True) for of in (NTXentLoss, Reference))
    soft = guided_by_raw_inputs(True, rank, world)
    criteria = (ours, theirs, soft)
    results = [gradients(criterion, DistributedDataParallel(linear()), rank, world) for criterion in criteria]
    torch.manual_seed(3)
    with_bank = NTXentLoss(memory_bank_size=(16, 4), gather_distributed=True).double()
    torch.manual_seed(3)
    reference = Reference(memory_bank_size=(16, 4), gather_distributed=True).double()
    for criterion in (with_bank, reference):
        gradients(criterion, DistributedDataParallel(linear()), rank, world)
    if rank == 0:
        torch.save((results, [with_bank.bank, reference.memory_bank.bank]), out)


@pytest.mark.filterwarnings("default")
@pytest.mark.slow
def test_two_processes_give_the_gradient_of_one(tmp_path: Path) -> None:
    run_in_process_group(work, 2, tmp_path / "gradients")
    (ours, theirs, soft), banks = torch.load(tmp_path / "gradients", weights_only=True)
    assert_equal(ours, gradients(NTXentLoss(temperature=0.2), linear(), 0, 1))
    assert_equal(ours, theirs)
    assert_equal(soft, gradients(guided_by_raw_inputs(False, 0, 1), linear(), 0, 1))
    torch.testing.assert_close(*banks)
