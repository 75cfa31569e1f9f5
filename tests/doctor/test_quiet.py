"""A look leaves no trace, in the criterion or in the random generators."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import pytorch_metric_learning.losses as pml
import torch
from lightly.loss import NTXentLoss
from torch import Tensor, nn

from contrapose import CATALOGUE, CosineSchedule, Doctor, Loss, PerSample, learned, nt_xent, two_views

COUNT, WIDTH = 16, 8


class _Sampling(nn.Module):
    """A criterion with everything that a look could disturb."""

    centre: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(3.0))
        self.register_buffer("centre", torch.zeros(()))
        self.calls, self.past = 0, [0.0]

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        self.calls += 1
        self.centre += 1.0
        value = self.scale * ((a - b).square().mean() + torch.rand(()) + random.random() + float(np.random.rand()))
        self.past.append(float(value.detach()))
        return value


def own(method: str, **settings: Any) -> Loss:
    return Loss(CATALOGUE[method](**settings))


CASES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "ours": (lambda: own("dystress"), {}),
    "learned": (lambda: Loss(nt_xent, temperature=learned(0.2, low=0.1)), {}),
    "scheduled": (lambda: Loss(nt_xent, temperature=CosineSchedule(0.1, 1.0, 4)), {}),
    "per sample": (lambda: Loss(CATALOGUE["isogclr"], state=PerSample(COUNT)), {"ids": torch.arange(COUNT)}),
    "not of similarities": (lambda: own("vicreg"), {}),
    "lightly": (NTXentLoss, {}),
    "lightly's bank": (lambda: NTXentLoss(memory_bank_size=(32, WIDTH)), {}),
    "pml": (lambda: pml.SelfSupervisedLoss(pml.NTXentLoss()), {}),
    "pml's bank": (lambda: pml.CrossBatchMemory(pml.NTXentLoss(), WIDTH, 32), {"labels": torch.arange(COUNT) % 4}),
    "pml's proxies": (lambda: pml.ProxyAnchorLoss(4, WIDTH), {"labels": torch.arange(COUNT) % 4}),
    "anything": (_Sampling, {}),
}


def train(make: Callable[[], Any], more: dict[str, Any], *, looking: bool) -> list[Any]:
    """Return everything that training leaves: weights, the criterion's state, and the next random numbers."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    network, criterion = nn.Sequential(nn.Linear(6, WIDTH), nn.Dropout(0.3)), make()
    optimiser = torch.optim.SGD([*network.parameters(), *criterion.parameters()], lr=0.1)
    doctor = Doctor(criterion, every=2, model=network)
    for _ in range(5):
        x = torch.randn(COUNT, 6)
        sides = (network(x),) if "labels" in more else (network(x), network(x))
        if looking:
            doctor.see(*sides, **more)
        loss = criterion(*sides, **more)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    if looking:
        assert len(doctor.looks) == 3
        assert "this look" not in doctor.left_out
    plain = {
        name: copy.deepcopy(value) for name, value in vars(criterion).items() if isinstance(value, int | float | list)
    }
    state = [*network.state_dict().values(), *criterion.state_dict().values()]
    return [state, plain, torch.rand(3), random.random(), float(np.random.rand())]


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(equal(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[name], other[name]) for name in one)
    return bool(one == other)


@pytest.mark.parametrize("name", CASES)
def test_training_is_the_same_with_looks(name: str) -> None:
    make, more = CASES[name]
    assert equal(train(make, more, looking=True), train(make, more, looking=False))


def test_a_look_leaves_gradients_alone() -> None:
    criterion = Loss(nt_xent, temperature=learned(0.2))
    z = torch.randn(COUNT, WIDTH, requires_grad=True)
    doctor = Doctor(criterion, every=1)
    doctor.see(z, z + 0.1)
    assert z.grad is None
    assert all(p.grad is None for p in criterion.parameters())
    assert doctor.looks[0].action is not None


def test_random_numbers_of_a_criterion_in_low_precision() -> None:
    doctor = Doctor(_Sampling(), every=1)
    z = torch.randn(2, COUNT, WIDTH).bfloat16().requires_grad_()
    before = torch.get_rng_state()
    doctor.see(z[0], z[1])
    assert torch.equal(before, torch.get_rng_state())
    assert doctor.looks[0].precision_error is not None


def test_a_closure_over_a_module_is_left_alone() -> None:
    module = _Sampling()
    doctor = Doctor(lambda a, b: module(a, b), every=1)
    doctor.see(*torch.randn(2, COUNT, WIDTH))
    assert doctor.looks[0].not_asked == "" or "lengths" in doctor.looks[0].not_asked
    assert (module.calls, float(module.centre), module.past) == (0, 0.0, [0.0])


class _PlainQueue:
    """A criterion that is no module, with a queue, a counter and a list."""

    def __init__(self) -> None:
        self.queue, self.calls, self.past = torch.randn(32, WIDTH), 0, [0.0]

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        self.calls += 1
        self.past.append(1.0)
        value = nt_xent(two_views(a, b), temperature=0.5)
        self.queue[self.calls % 32] += 1.0
        return value


@pytest.mark.parametrize("which", ["object", "method", "closure"])
def test_the_state_of_a_criterion_that_is_no_module(which: str) -> None:
    plain, state = _PlainQueue(), {"calls": 0, "rows": [torch.zeros(3)]}

    def closure(a: Tensor, b: Tensor) -> Tensor:
        state["calls"] += 1  # type: ignore[operator]
        state["rows"][0] += 1.0  # type: ignore[index]
        return nt_xent(two_views(a, b), temperature=0.5)

    criterion: Any = {"object": plain, "method": plain.__call__, "closure": closure}[which]
    queue, doctor = plain.queue.clone(), Doctor(criterion)
    z = torch.randn(COUNT, WIDTH, requires_grad=True)
    doctor.see(z, z + 0.1)
    assert doctor.looks[0].action is not None
    assert (plain.calls, plain.past, state["calls"]) == (0, [0.0], 0)
    assert torch.equal(plain.queue, queue)
    assert torch.equal(state["rows"][0], torch.zeros(3))  # type: ignore[index]


def test_a_watched_criterion_can_be_saved_and_copied() -> None:
    loss = Loss(nt_xent, temperature=0.5)
    doctor = Doctor(loss, every=1)
    doctor.watch()
    z = torch.randn(COUNT, WIDTH, requires_grad=True)
    for other in (pickle.loads(pickle.dumps(loss)), copy.deepcopy(loss)):
        assert torch.equal(other(z, z + 0.1), loss(z, z + 0.1))
    assert doctor.step == 2  # of the watched one only


def test_a_large_state_is_not_copied() -> None:
    criterion = _Sampling()
    criterion.register_buffer("queue", torch.empty(2**26 + 1))
    doctor = Doctor(criterion, every=1)
    doctor.see(*torch.randn(2, COUNT, WIDTH))
    assert "256 MiB of state" in doctor.looks[0].not_asked


def test_steps_without_gradient_and_in_evaluation_are_not_counted() -> None:
    criterion = Loss(nt_xent, temperature=0.5)
    doctor = Doctor(criterion, every=1)
    with torch.no_grad():
        doctor.see(*torch.randn(2, COUNT, WIDTH))
    criterion.eval()
    doctor.see(*torch.randn(2, COUNT, WIDTH))
    assert doctor.step == 0
