"""The step as a function of tensors takes the steps of the plain loop; on a GPU so does its graph, and it resumes exactly."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from contrapose import validate
from contrapose.cuda.graphs import WARMUP_STEPS, GraphedStep
from contrapose.cuda.streams import side_stream
from contrapose.losses import CATALOGUE, Loss, balanced, macl, nt_xent
from contrapose.optim.lars import LARS
from contrapose.pairs import two_views
from contrapose.temperature import CosineSchedule
from contrapose.training import Run, Trainer, drain
from contrapose.training.eager import EagerSteps
from contrapose.training.graphed import GraphedSteps, TensorStep, graph_obstacle
from contrapose.training.stops import StopRequests

SETTINGS: dict[str, Any] = {
    "limit": 256,
    "batch": 32,
    "epochs": 1,
    "metrics": 0,
    "knn": 3,
    "optimiser": "sgd",
    "lr": 0.01,
}
LOSSES = [*sorted(CATALOGUE), "nt_xent(negatives=hardest(0.1))", "sogclr(gamma=0.9)"]
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def quiet(text: str) -> None:
    return


def plain(run: Run, folder: Path, device: str = "cpu") -> tuple[list[float], list[Tensor]]:
    seen: list[float] = []
    trainer = Trainer(
        run, folder, watch=lambda p: seen.append(p.loss), say=quiet, device=torch.device(device), fast=False
    )
    drain(trainer._epoch(0))
    return seen, [p.detach() for p in trainer.context.network.parameters()]


@pytest.mark.parametrize("framework", ["simclr", "moco", "moco symmetric", "moco-v3", "memory-bank", "simclr isogclr"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_step_of_tensors_is_the_plain_step(framework: str, accumulate: int, tmp_path: Path) -> None:
    name, *more = framework.split()
    both, loss = "symmetric" in more, {"loss": "isogclr"} if "isogclr" in more else {}
    run = Run(framework=name, symmetric=both, batch_negatives=both, accumulate=accumulate, **SETTINGS | loss)
    losses, weights = plain(run, tmp_path / "plain")
    trainer = Trainer(run, tmp_path / "tensors", say=quiet, device=torch.device("cpu"))
    step = TensorStep(trainer.context, trainer.context.views.train)
    step.begin(1, 3)  # views are made ahead, and made anew where another epoch begins
    step.begin(0, 0)
    for _ in losses:
        step()
    torch.testing.assert_close(step.losses, torch.tensor(losses), rtol=1e-4, atol=1e-5)
    for ours, wanted in zip(trainer.context.network.parameters(), weights, strict=True):
        torch.testing.assert_close(ours.detach(), wanted, rtol=1e-3, atol=1e-5)
    assert step.failed_at() == -1
    assert int(step.place) == trainer.steps_per_epoch


@pytest.mark.parametrize(
    "change",
    [
        {"views": "digits+local2"},
        {"framework": "moco", "views": "digits+local2", "accumulate": 2},
        {"framework": "moco-v3"},
    ],
    ids=lambda change: "-".join(map(str, change.values())),
)
def test_an_epoch_taken_up_in_its_middle_goes_on_the_same(change: dict[str, Any], tmp_path: Path) -> None:
    """To the last bit, with views of two sizes and several batches a step, too."""
    run = Run(**SETTINGS | {"batch": 16, "epochs": 2} | change)
    whole = Trainer(run, tmp_path, say=quiet, device=torch.device("cpu"))
    step = TensorStep(whole.context, whole.context.views.train)
    step.begin(0, 0)
    for place in range(whole.steps_per_epoch):
        if place == 3:
            whole.step = place
            whole._save()
        step()
    parts = Trainer(run, tmp_path, say=quiet, device=torch.device("cpu"))
    assert parts.load_latest()
    again = TensorStep(parts.context, parts.context.views.train)
    again.begin(0, parts.step)
    for _ in range(parts.step, parts.steps_per_epoch):
        again()
    for one in (step, again):
        one.begin(1, 0)
        one()
    for name, value in whole.saved_state.state_dict().items():
        assert torch.equal(value, parts.saved_state.state_dict()[name]), name


class _NoQuestions(TorchDispatchMode):
    """Refuses what makes a program wait for the device to tell a value or a size: none of it can be recorded."""

    ASKING = (
        "_local_scalar_dense",
        "nonzero",
        "masked_select",
        "_unique2",
        "unique_dim",
        "unique_consecutive",
        "equal",
    )

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        assert function.name().split("::")[1].split(".")[0] not in self.ASKING, f"{function} asks the device"
        return function(*given, **named or {})


@pytest.mark.parametrize("framework", ["simclr", "moco", "memory-bank"])
@pytest.mark.parametrize("loss", LOSSES)
def test_no_step_asks_the_device(loss: str, framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    views = 3 if loss.startswith(("cmc", "cacr")) else 1 if framework == "memory-bank" else 2
    run = Run(framework=framework, loss=loss, view_count=views, **SETTINGS | {"limit": 64, "batch": 16})
    trainer = Trainer(run, tmp_path, say=quiet, device=torch.device("cpu"))
    _, seen = next(
        EagerSteps(trainer.context).batches(0, 0)
    )  # on a CPU augmentation computes only what is chosen, on a GPU everything
    step = TensorStep(trainer.context, lambda *given, **named: seen)
    step.begin(0, 0)
    step()  # what is made once
    monkeypatch.setattr(validate, "values_may_be_read", lambda values: False)  # as when recording
    monkeypatch.setattr(trainer.context.optimiser, "step", lambda: None)  # on a GPU another one, fused
    with _NoQuestions():  # type: ignore[no-untyped-call]
        step()
    assert bool(step.losses[:2].isfinite().all())


def test_a_step_that_fails_is_remembered(tmp_path: Path) -> None:
    trainer = Trainer(Run(**SETTINGS), tmp_path, say=quiet, device=torch.device("cpu"))
    step = TensorStep(trainer.context, trainer.context.views.train)
    step.begin(0, 0)
    step()
    with torch.no_grad():
        next(trainer.context.network.parameters()).fill_(torch.nan)
    step()
    step()
    assert step.failed_at() == 1
    assert float(step.failed) == 1


def test_without_a_gpu_steps_are_plain(tmp_path: Path) -> None:
    said: list[str] = []
    trainer = Trainer(Run(**SETTINGS), tmp_path, say=said.append, device=torch.device("cpu"))
    assert graph_obstacle(trainer.context) == "there is no GPU"
    trainer._choose_steps()
    assert isinstance(trainer.steps, EagerSteps)
    assert said == []


def test_a_schedule_is_held_in_a_tensor() -> None:
    z1, z2 = torch.randn(2, 6, 4, dtype=torch.float64)
    criterion = Loss(nt_xent, temperature=CosineSchedule(0.1, 1.0, 400))
    wanted = []
    for epoch in (0, 100, 200):
        criterion.epoch = epoch
        wanted.append(float(criterion(two_views(z1, z2))))
    criterion.hold_schedules(torch.device("cpu"))
    for epoch, value in zip((0, 100, 200), wanted, strict=True):
        criterion.epoch = epoch
        criterion.refresh_schedules()
        assert float(criterion(two_views(z1, z2))) == pytest.approx(value, rel=1e-6)
    assert len(set(wanted)) == 3


def test_other_schedules_are_not_held() -> None:
    assert Loss(nt_xent, temperature=CosineSchedule()).can_capture
    assert Loss(nt_xent, temperature=0.2).can_capture
    assert not Loss(macl, temperature=CosineSchedule()).can_capture
    assert not Loss(balanced, alpha=CosineSchedule()).can_capture


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_restored_state_lies_as_its_weights_do(optimiser: str, tmp_path: Path) -> None:
    """Files hold no memory layout; fused optimisers refuse momentum that lies otherwise than its weights."""
    run = Run(**SETTINGS | {"optimiser": optimiser})
    trainer = Trainer(run, tmp_path, say=quiet)
    drain(trainer._epoch(0))
    trainer._save()
    again = Trainer(run, tmp_path, say=quiet)
    assert again.load_latest()
    for parameter, state in again.context.optimiser.state.items():
        for name, value in state.items():
            if value.shape == parameter.shape:
                assert value.stride() == parameter.stride(), name
                torch.testing.assert_close(
                    value, trainer.context.optimiser.state[_same(trainer, again, parameter)][name]
                )


def _same(trainer: Trainer, again: Trainer, parameter: Tensor) -> Tensor:
    places = {id(p): place for place, p in enumerate(again.context.network.parameters())}
    return list(trainer.context.network.parameters())[places[id(parameter)]]


def test_lars_with_its_rate_in_a_tensor() -> None:
    weights = [nn.Parameter(torch.ones(3, 2) * 0.5) for _ in range(2)]
    plain_, held = (LARS([{"params": [w], "weight_decay": 0.1}], 0.3) for w in weights)
    held.param_groups[0]["lr"] = torch.tensor(0.3)
    for _ in range(3):
        for w, optimiser in zip(weights, (plain_, held), strict=True):
            w.grad = torch.full_like(w, 0.2)
            optimiser.step()
    torch.testing.assert_close(weights[0], weights[1])
    held.found_inf = torch.ones(())  # type: ignore[attr-defined]
    before = weights[1].detach().clone()
    weights[1].grad = torch.full_like(before, torch.nan)
    held.step()
    assert torch.equal(weights[1].detach(), before)
    assert bool(held.state[weights[1]]["velocity"].isfinite().all())


@on_gpu
@pytest.mark.parametrize(
    "change",
    [
        {"framework": "simclr"},
        {"framework": "moco"},
        {"framework": "moco", "norm_splits": 4},
        {"framework": "moco", "norm_splits": 4, "symmetric": True, "batch_negatives": True},
        {"framework": "moco-v3"},
        {"framework": "memory-bank"},
        {"loss": "isogclr"},
    ],
    ids=lambda change: "-".join(map(str, change.values())),
)
def test_the_graph_gives_the_losses_of_the_cpu(change: dict[str, Any], tmp_path: Path) -> None:
    # At a higher rate rounding grows from step to step: bf16 and float32 on one CPU are 0.3 apart after 20 steps at 0.01.
    run = Run(**SETTINGS | {"precision": "bf16", "limit": 640, "lr": 1e-4} | change)
    losses, _ = plain(run, tmp_path / "plain")
    trainer = Trainer(run, tmp_path / "graph", say=quiet)
    captured = GraphedSteps(trainer.context)
    found = drain(captured.epoch(0, 0, lambda *progress: None))
    assert len(found) == 20
    torch.testing.assert_close(torch.tensor(found), torch.tensor(losses), rtol=0.02, atol=0.02)
    captured.begin(1, 0)
    for _ in range(7):
        captured.one()
    captured.one.stream.synchronize()
    raw = trainer.context.reader.resident
    assert raw is not None
    index = captured.step.order[7]  # the next batch's views are there
    wanted = trainer.context.views.train(raw[index], index, seed=run.seed, epoch=1)
    for ours, view in zip(captured.step.ready, wanted, strict=True):
        torch.testing.assert_close(ours, view, rtol=1e-3, atol=1e-3)


@on_gpu
def test_runs_of_different_networks_take_turns_and_keep_their_graphs(tmp_path: Path) -> None:
    """The second begins by undoing what was compiled for the first."""
    runs = [Run(framework=name, precision="bf16", **SETTINGS | {"epochs": 2}) for name in ("simclr", "moco")]
    said: list[str] = []
    trainers = [Trainer(run, tmp_path / run.framework, say=said.append) for run in runs]
    works = [trainer.training(StopRequests()) for trainer in trainers]
    while works:
        for work in list(works):
            if next(work, "over") == "over":
                works.remove(work)
    for trainer in trainers:
        assert isinstance(trainer.steps, GraphedSteps)
        assert trainer.steps.one.graph is not None
    assert not [text for text in said if "could not be recorded" in text]


@on_gpu
def test_a_resumed_graph_equals_an_uninterrupted_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from contrapose.training import Stopped

    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        run = Run(precision="bf16", **SETTINGS | {"epochs": 3})
        whole = Trainer(run, tmp_path / "whole", say=quiet)
        whole.train()
        first = Trainer(run, tmp_path / "parts", say=quiet)
        epoch = first._epoch

        def stopped(number: int) -> Generator[None, None, tuple[float, float]]:
            result = yield from epoch(number)
            first.requests.append(15)
            return result

        monkeypatch.setattr(first, "_epoch", stopped)
        with pytest.raises(Stopped):
            first.train()
        second = Trainer(run, tmp_path / "parts", say=quiet)
        second.train()
    finally:
        torch.use_deterministic_algorithms(False)
    for name, value in whole.context.network.state_dict().items():
        assert torch.equal(value, second.context.network.state_dict()[name]), name


@on_gpu
def test_what_cannot_be_recorded_goes_on_step_by_step(tmp_path: Path) -> None:
    run, said = Run(precision="bf16", **SETTINGS), list[str]()
    found = []
    for looks in (False, True):
        trainer = Trainer(run, tmp_path / str(looks), say=said.append)
        captured = GraphedSteps(trainer.context, compiled=False)
        loss_of = trainer.context.loss

        def looked_at(seen: list[Tensor], index: Tensor, loss_of: Any = loss_of, looks: bool = looks) -> Tensor:
            loss: Tensor = loss_of(seen, index)
            return loss if not looks or float(loss.detach()) else loss * 0

        trainer.context.loss = looked_at  # type: ignore[method-assign,assignment]
        losses = drain(captured.epoch(0, 0, lambda *progress: None))
        assert (captured.one.graph is None) == looks
        found.append(losses)
    assert "could not be recorded" in said[-1]
    assert found[0] == found[1]


@on_gpu
def test_runs_in_turns_are_the_runs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit: none reads what another has not written yet, or writes where another still reads."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        runs = [Run(framework="moco", precision="bf16", **SETTINGS | {"epochs": 3, "seed": seed}) for seed in (0, 1)]
        alone = [Trainer(run, tmp_path / f"alone{run.seed}", say=quiet) for run in runs]
        for trainer in alone:
            trainer.train()
        together = [Trainer(run, tmp_path / f"turns{run.seed}", say=quiet) for run in runs]
        works = [trainer.training(StopRequests()) for trainer in together]
        while works:
            works = [work for work in works if next(work, "over") != "over"]
    finally:
        torch.use_deterministic_algorithms(False)
    for one, other in zip(alone, together, strict=True):
        for name, value in one.context.network.state_dict().items():
            assert torch.equal(value, other.context.network.state_dict()[name]), name


@on_gpu
def test_out_of_memory_while_recording_is_told() -> None:
    """Also where it leaves work on a second stream."""
    device = torch.device("cuda")
    times = torch.zeros((), device=device)

    def step() -> None:
        with side_stream(device) as join:
            times.add_(1)
        if torch.cuda.is_current_stream_capturing():
            torch.empty(2**50, device=device)
        join()

    one = GraphedStep(step, device)
    for _ in range(WARMUP_STEPS - 1):
        one()
    with pytest.raises(torch.OutOfMemoryError):  # the last that runs as it is, and then the recording
        one()
    torch.cuda.synchronize()
    assert float(times) == WARMUP_STEPS


@on_gpu
def test_a_failed_recording_leaves_others_as_they_were() -> None:
    device = torch.device("cuda")
    total, looked = torch.zeros((), device=device), torch.zeros((), device=device)

    def by_chance() -> None:
        total.add_(1 + torch.rand((), device=device))

    def by_a_look() -> None:
        looked.add_(1 if looked.isfinite() else 0)

    good, bad = GraphedStep(by_chance, device), GraphedStep(by_a_look, device)
    for _ in range(WARMUP_STEPS + 3):
        good()
        bad()
    assert good.graph is not None
    assert bad.graph is None
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    torch.cuda.synchronize()
    assert float(looked) == WARMUP_STEPS + 3
    assert float(torch.rand(3, device=device).sum()) > 0
    assert WARMUP_STEPS + 3 < float(total) < 2 * (WARMUP_STEPS + 3)
