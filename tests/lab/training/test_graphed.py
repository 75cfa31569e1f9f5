"""The step as a function of tensors equals the eager step; on a GPU so does its CUDA graph, and it resumes exactly."""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import OF_VIEWS
from framework_cases import FRAMEWORK_CASES
from streaming import write_folder
from tiers import first
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from contrapose import validate
from contrapose.lab.cuda.graphs import WARMUP_STEPS, GraphedStep
from contrapose.lab.cuda.streams import side_stream
from contrapose.lab.frameworks import FRAMEWORKS
from contrapose.lab.modalities.source import StagedReader
from contrapose.lab.optim.lars import LARS
from contrapose.lab.training import Run, Trainer, drain
from contrapose.lab.training.build import build_loss
from contrapose.lab.training.context import StepContext
from contrapose.lab.training.eager import EagerSteps
from contrapose.lab.training.graphed import GraphedSteps, TensorStep, graph_obstacle
from contrapose.lab.training.optimisers import optimiser as build_optimiser
from contrapose.lab.training.stops import StopRequests
from contrapose.losses import CATALOGUE, Loss, balanced, dino, macl, moco_v3, nt_xent
from contrapose.losses.objective import traits_of
from contrapose.losses.parse import parse
from contrapose.pairs import two_views
from contrapose.temperature import CosineSchedule, LinearWarmup

SETTINGS: dict[str, Any] = {
    "limit": 256,
    "batch": 32,
    "epochs": 1,
    "metrics": 0,
    "knn": 3,
    "optimiser": "sgd",
    "lr": 0.01,
}
# Eigenvectors cannot be computed without waiting for the device.
WAITING = {"arb", "zero_cl", "zero_fcl", "zero_icl"}
# NNCLR's loss is NT-Xent: the pairs of its own framework make it NNCLR.
LOSSES = [*sorted(set(CATALOGUE) - WAITING - {"nnclr"}), "nt_xent(negatives=hardest(0.1))", "sogclr(gamma=0.9)"]
# What the runs of the registry leave out: a schedule, prefixes, a queue from the first epoch on, all views as anchors
FURTHER_CASES: dict[str, dict[str, Any]] = {
    "swav queue": {
        "framework": "swav", "loss": "swav", "prototypes": 20, "frozen_epochs": 0, "queue": 64, "queue_start": 1},
    "nested": {"framework": "moco", "queue": 64, "loss": "dystress", "dims": (8, 32, 128)},
    "fnc_elimination": {"framework": "fnc", "loss": "fnc_elimination", "anchor_views": 0, "queue": 64},
    "dino schedule": {
        "framework": "dino", "loss": "dino(teacher_temperature=warmup(0.04, 0.07, 3))", "prototypes": 20,
        "momentum_schedule": "cosine", "grad_clip": 0.1, "grad_clip_each": True},
}  # fmt: skip
CASES = {**FRAMEWORK_CASES, **FURTHER_CASES}
FRAMEWORKS_OF_PAIRS = ("simclr", "moco", "memory-bank")  # with any loss of pairs
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def quiet(text: str) -> None:
    return


def train_eagerly(run: Run, folder: Path, device: str = "cpu") -> tuple[list[float], list[Tensor]]:
    """Train one epoch without a graph; return the losses and the final weights."""
    losses: list[float] = []
    trainer = Trainer(
        run, folder, on_step=lambda p: losses.append(p.loss), log=quiet, device=torch.device(device), fast=False
    )
    trainer.context.network.begin_epoch(0, step=0, steps=trainer.total_steps)
    drain(trainer._epoch(0))
    return losses, [p.detach() for p in trainer.context.network.parameters()]


@pytest.mark.parametrize(
    "change",
    first(
        3,
        [
            *({"framework": name} for name in ("simclr", "moco")),
            CASES["byol"],
            {"loss": "isogclr"},
            *(case for name, case in CASES.items() if name not in ("simclr", "byol")),
        ],
    ),
    ids=lambda change: "-".join(map(str, change.values())),
)
@pytest.mark.parametrize("accumulate", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_tensor_step_equals_the_eager_step(change: dict[str, Any], accumulate: int, tmp_path: Path) -> None:
    run = Run(accumulate=accumulate, **SETTINGS | change)
    losses, weights = train_eagerly(run, tmp_path / "eager")
    trainer = Trainer(run, tmp_path / "tensors", log=quiet, device=torch.device("cpu"))
    step = TensorStep(trainer.context, trainer.context.views.train)
    trainer.context.network.begin_epoch(0, step=0, steps=trainer.total_steps)
    step.begin(1, 3)  # views are prepared one step ahead; another epoch must discard them
    step.begin(0, 0)
    for _ in losses:
        step()
    torch.testing.assert_close(step.losses, torch.tensor(losses), rtol=1e-4, atol=1e-5)
    for ours, eager in zip(trainer.context.network.parameters(), weights, strict=True):
        torch.testing.assert_close(ours.detach(), eager, rtol=1e-3, atol=1e-5)
    assert step.failed_at() == -1
    assert int(step.place) == trainer.steps_per_epoch


@pytest.mark.parametrize(
    ("accumulate", "batch"), [(2, 8), *(pytest.param(*case, marks=pytest.mark.thorough) for case in ((1, 8), (2, 20)))]
)
def test_a_tensor_step_equals_the_eager_step_on_streamed_images(accumulate: int, batch: int, tmp_path: Path) -> None:
    """Images on disk come batch by batch; (2, 20) is an epoch of a single step, whose second batch has no successor."""
    folder = write_folder(tmp_path / "mine")
    run = Run(
        data=str(folder),
        stream=True,
        views="simclr-cifar",
        **SETTINGS | {"batch": batch, "limit": 0},
        accumulate=accumulate,
    )
    losses, weights = train_eagerly(run, tmp_path / "eager")
    trainer = Trainer(run, tmp_path / "tensors", log=quiet, device=torch.device("cpu"))
    reader = trainer.context.reader
    assert isinstance(reader, StagedReader)
    step = TensorStep(trainer.context, reader.finish)
    trainer.context.network.begin_epoch(0, step=0, steps=trainer.total_steps)
    step.begin(0, 0)
    for _ in losses:
        step.stage()
        step()
    assert next(step.coming, None) is None  # every batch was taken
    torch.testing.assert_close(step.losses, torch.tensor(losses), rtol=1e-4, atol=1e-5)
    for ours, eager in zip(trainer.context.network.parameters(), weights, strict=True):
        torch.testing.assert_close(ours.detach(), eager, rtol=1e-3, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "change",
    [
        {"framework": "moco", "views": "digits+local2", "accumulate": 2},
        CASES["swav queue"] | {"views": "digits+local2"},
        *(pytest.param(change, marks=pytest.mark.slow) for change in ({"views": "digits+local2"}, *CASES.values())),
    ],
    ids=lambda change: "-".join(map(str, change.values())),
)
def test_resuming_in_the_middle_of_an_epoch_is_exact(change: dict[str, Any], tmp_path: Path) -> None:
    """To the last bit, also with views of two sizes and several batches per step."""
    run = Run(**SETTINGS | {"batch": 16, "epochs": 2} | change)
    whole = Trainer(run, tmp_path, log=quiet, device=torch.device("cpu"))
    step = TensorStep(whole.context, whole.context.views.train)
    whole.context.network.begin_epoch(0, step=0, steps=whole.total_steps)
    step.begin(0, 0)
    for number in range(whole.steps_per_epoch):
        if number == 3:
            whole.step = number
            whole._save()
        step()
    resumed = Trainer(run, tmp_path, log=quiet, device=torch.device("cpu"))
    assert resumed.load_latest()
    resumed_step = TensorStep(resumed.context, resumed.context.views.train)
    resumed.context.network.begin_epoch(0, step=resumed.step, steps=resumed.total_steps)
    resumed_step.begin(0, resumed.step)
    for _ in range(resumed.step, resumed.steps_per_epoch):
        resumed_step()
    for tensor_step in (step, resumed_step):
        tensor_step.begin(1, 0)
        tensor_step()
    for name, value in whole.saved_state.state_dict().items():
        assert torch.equal(value, resumed.saved_state.state_dict()[name]), name


class _NoSynchronisation(TorchDispatchMode):
    """Refuse operations that wait for the device to return a value or a size: a CUDA graph cannot capture them."""

    SYNCHRONISING = (
        "_local_scalar_dense",
        "nonzero",
        "masked_select",
        "_unique2",
        "unique_dim",
        "unique_consecutive",
        "equal",
    )

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert function.name().split("::")[1].split(".")[0] not in self.SYNCHRONISING, f"{function} synchronises"
        return function(*args, **kwargs or {})


@pytest.mark.parametrize(
    ("loss", "framework"),
    [
        pytest.param(loss, framework, marks=() if framework == "simclr" else pytest.mark.thorough)
        for loss in LOSSES
        for framework in FRAMEWORKS_OF_PAIRS
        if FRAMEWORKS[framework].suits(traits_of(parse(loss).func)) and (framework == "simclr" or loss not in OF_VIEWS)
    ],
)
def test_no_step_synchronises_with_the_device(loss: str, framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    views = 3 if loss.startswith(("cmc", "cacr")) else 1 if framework == "memory-bank" else 2
    if loss == "fastclip" and framework in ("moco", "memory-bank"):  # whose anchors are no two towers
        loss = "fastclip(towers=1)"
    run = Run(framework=framework, loss=loss, view_count=views, **SETTINGS | {"limit": 64, "batch": 16})
    check_synchronisation(run, monkeypatch)


@pytest.mark.parametrize("name", CASES)
def test_no_step_of_any_framework_synchronises(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_synchronisation(Run(**SETTINGS | {"limit": 64, "batch": 16} | CASES[name]), monkeypatch)


@pytest.mark.parametrize("similarity", ["dot", "neg_euclid"])
def test_no_step_of_raw_similarities_synchronises(similarity: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(similarity=similarity, **SETTINGS | {"limit": 64, "batch": 16})
    check_synchronisation(run, monkeypatch)


@cache
def network_context(run: Run) -> StepContext:
    """Return the context of a run with networks and data; the many losses of a framework share it."""
    with tempfile.TemporaryDirectory() as folder:
        return Trainer(run, Path(folder) / "run", log=quiet, device=torch.device("cpu")).context


def check_synchronisation(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take two steps of a run; fail if the second one would wait for a GPU."""
    # TaU needs another output of the projector, and a supervised loss the labels.
    shared = not (run.needs_score or run.needs_labels)
    base = replace(run, loss="simclr") if shared and run.framework in FRAMEWORKS_OF_PAIRS else run
    context = replace(network_context(base), run=run, criterion=build_loss(run, run.limit))
    context.optimiser = build_optimiser(run, context.network, context.criterion)
    # On a CPU augmentation computes only what is chosen, on a GPU everything.
    _, prepared_views = next(EagerSteps(context).batches(0, 0))
    step = TensorStep(context, lambda *args, **kwargs: prepared_views)
    step.begin(0, 0)
    step()  # the first step may synchronise to create its state
    monkeypatch.setattr(validate, "values_may_be_read", lambda values: False)  # as during a capture
    monkeypatch.setattr(context.optimiser, "step", lambda: None)  # a GPU uses the fused one instead
    with _NoSynchronisation():  # type: ignore[no-untyped-call]
        step()
    assert bool(step.losses[:2].isfinite().all())


def test_the_first_failed_step_is_recorded(tmp_path: Path) -> None:
    trainer = Trainer(Run(**SETTINGS), tmp_path, log=quiet, device=torch.device("cpu"))
    step = TensorStep(trainer.context, trainer.context.views.train)
    step.begin(0, 0)
    step()
    with torch.no_grad():
        next(trainer.context.network.parameters()).fill_(torch.nan)
    step()
    step()
    assert step.failed_at() == 1
    assert float(step.failed) == 1


def test_steps_are_eager_without_a_gpu(tmp_path: Path) -> None:
    messages: list[str] = []
    trainer = Trainer(Run(**SETTINGS), tmp_path, log=messages.append, device=torch.device("cpu"))
    assert graph_obstacle(trainer.context) == "there is no GPU"
    trainer._choose_steps()
    assert isinstance(trainer.steps, EagerSteps)
    assert messages == []


def test_steps_contrasted_as_a_whole_are_eager(tmp_path: Path) -> None:
    run = Run(**SETTINGS, accumulate=2, grad_cache=True)
    context = Trainer(run, tmp_path, log=quiet, device=torch.device("cpu")).context
    obstacle = graph_obstacle(replace(context, device=torch.device("cuda")))
    assert obstacle == "with --grad-cache, the batches of a step are encoded twice"


@pytest.mark.parametrize("loss", sorted(WAITING))
def test_a_loss_that_computes_eigenvectors_is_eager(loss: str, tmp_path: Path) -> None:
    context = Trainer(Run(**SETTINGS, loss=loss), tmp_path, log=quiet, device=torch.device("cpu")).context
    obstacle = graph_obstacle(replace(context, device=torch.device("cuda")))
    assert obstacle == "the loss computes eigenvectors, which waits for the GPU"
    assert not context.criterion.can_capture


def test_a_schedule_is_held_in_a_tensor() -> None:
    z1, z2 = torch.randn(2, 6, 4, dtype=torch.float64)
    criterion = Loss(nt_xent, temperature=CosineSchedule(0.1, 1.0, 400))
    expected = []
    for epoch in (0, 100, 200):
        criterion.epoch = epoch
        expected.append(float(criterion(two_views(z1, z2))))
    criterion.hold_schedules(torch.device("cpu"))
    for epoch, value in zip((0, 100, 200), expected, strict=True):
        criterion.epoch = epoch
        criterion.refresh_schedules()
        assert float(criterion(two_views(z1, z2))) == pytest.approx(value, rel=1e-6)
    assert len(set(expected)) == 3


def test_other_schedules_are_not_held() -> None:
    assert Loss(nt_xent, temperature=CosineSchedule()).can_capture
    assert Loss(nt_xent, temperature=0.2).can_capture
    assert Loss(dino, temperature=CosineSchedule(), teacher_temperature=LinearWarmup()).can_capture
    assert not Loss(macl, temperature=CosineSchedule()).can_capture
    assert not Loss(moco_v3, temperature=CosineSchedule()).can_capture
    assert not Loss(balanced, alpha=CosineSchedule()).can_capture


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_restored_state_has_the_memory_layout_of_its_weights(optimiser: str, tmp_path: Path) -> None:
    """Files do not keep a memory layout, and fused optimisers refuse momentum whose layout differs from its weights."""
    run = Run(**SETTINGS | {"optimiser": optimiser})
    trainer = Trainer(run, tmp_path, log=quiet)
    drain(trainer._epoch(0))
    trainer._save()
    restored = Trainer(run, tmp_path, log=quiet)
    assert restored.load_latest()
    for parameter, state in restored.context.optimiser.state.items():
        for name, value in state.items():
            if value.shape == parameter.shape:
                assert value.stride() == parameter.stride(), name
                torch.testing.assert_close(
                    value, trainer.context.optimiser.state[_counterpart(trainer, restored, parameter)][name]
                )


def _counterpart(trainer: Trainer, restored: Trainer, parameter: Tensor) -> Tensor:
    """Return the parameter of `trainer` that corresponds to one of `restored`."""
    positions = {id(p): position for position, p in enumerate(restored.context.network.parameters())}
    return list(trainer.context.network.parameters())[positions[id(parameter)]]


def test_lars_with_its_learning_rate_in_a_tensor() -> None:
    weights = [nn.Parameter(torch.ones(3, 2) * 0.5) for _ in range(2)]
    with_float, with_tensor = (LARS([{"params": [w], "weight_decay": 0.1}], 0.3) for w in weights)
    with_tensor.param_groups[0]["lr"] = torch.tensor(0.3)
    for _ in range(3):
        for w, optimiser in zip(weights, (with_float, with_tensor), strict=True):
            w.grad = torch.full_like(w, 0.2)
            optimiser.step()
    torch.testing.assert_close(weights[0], weights[1])
    with_tensor.found_inf = torch.ones(())  # type: ignore[attr-defined]
    before = weights[1].detach().clone()
    weights[1].grad = torch.full_like(before, torch.nan)
    with_tensor.step()
    assert torch.equal(weights[1].detach(), before)
    assert bool(with_tensor.state[weights[1]]["velocity"].isfinite().all())


@on_gpu
@pytest.mark.parametrize(
    "change",
    [
        {"framework": "moco"},
        {"framework": "moco", "norm_splits": 4},
        {"framework": "moco", "norm_splits": 4, "symmetric": True, "batch_negatives": True},
        *CASES.values(),
        {"loss": "isogclr"},
        # The gradients of these losses are large: at 1e-4, bf16 and float32 on one CPU are 2 to 6 % apart after 20 steps.
        {"loss": "w_mse(size=32)", "width": 16, "lr": 1e-6},
        {"loss": "barlow_twins", "lr": 1e-6},
        {"loss": "vicreg", "lr": 1e-6},
    ],
    ids=lambda change: "-".join(map(str, change.values())),
)
def test_the_graph_has_the_losses_of_the_cpu(change: dict[str, Any], tmp_path: Path) -> None:
    # A higher learning rate amplifies rounding from step to step: bf16 and float32 on one CPU are 0.3 apart after 20 steps at 0.01.
    rate = (
        1e-4 if change.get("similarity", "cosine") == "cosine" else 1e-6
    )  # distances are large too: 19 % apart at 1e-4
    run = Run(**SETTINGS | {"precision": "bf16", "limit": 640, "lr": rate} | change)
    losses, _ = train_eagerly(run, tmp_path / "eager")
    trainer = Trainer(run, tmp_path / "graph", log=quiet)
    captured = GraphedSteps(trainer.context)
    graph_losses = drain(captured.epoch(0, 0, lambda *progress: None))
    assert len(graph_losses) == 20
    torch.testing.assert_close(torch.tensor(graph_losses), torch.tensor(losses), rtol=0.02, atol=0.02)
    captured.begin(1, 0)
    for _ in range(7):
        captured.one()
    captured.one.stream.synchronize()
    raw = trainer.context.reader.resident
    assert raw is not None
    index = captured.step.order[7]  # the views of the next batch are ready
    expected_views = trainer.context.views.train(raw[index], index, seed=run.seed, epoch=1)
    for ours, view in zip(captured.step.ready, expected_views, strict=True):
        torch.testing.assert_close(ours, view, rtol=1e-3, atol=1e-3)


@on_gpu
def test_runs_of_different_networks_take_turns_and_keep_their_graphs(tmp_path: Path) -> None:
    """Starting the second run resets the compiler, which must not invalidate the graph of the first."""
    runs = [Run(framework=name, precision="bf16", **SETTINGS | {"epochs": 2}) for name in ("simclr", "moco")]
    messages: list[str] = []
    trainers = [Trainer(run, tmp_path / run.framework, log=messages.append) for run in runs]
    works = [trainer.training(StopRequests()) for trainer in trainers]
    while works:
        for work in list(works):
            if next(work, "ended") == "ended":
                works.remove(work)
    for trainer in trainers:
        assert isinstance(trainer.steps, GraphedSteps)
        assert trainer.steps.one.graph is not None
    assert not [text for text in messages if "could not be captured" in text]


@on_gpu
def test_a_resumed_graph_equals_an_uninterrupted_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from contrapose.lab.training import Stopped

    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        run = Run(precision="bf16", **SETTINGS | {"epochs": 3})
        whole = Trainer(run, tmp_path / "whole", log=quiet)
        whole.train()
        first = Trainer(run, tmp_path / "parts", log=quiet)
        epoch = first._epoch

        def stopped(number: int) -> Generator[None, None, tuple[float, float]]:
            result = yield from epoch(number)
            first.requests.append(15)
            return result

        monkeypatch.setattr(first, "_epoch", stopped)
        with pytest.raises(Stopped):
            first.train()
        second = Trainer(run, tmp_path / "parts", log=quiet)
        second.train()
    finally:
        torch.use_deterministic_algorithms(False)
    for name, value in whole.context.network.state_dict().items():
        assert torch.equal(value, second.context.network.state_dict()[name]), name


@on_gpu
def test_a_step_that_cannot_be_captured_runs_eagerly(tmp_path: Path) -> None:
    run, messages = Run(precision="bf16", **SETTINGS), list[str]()
    losses_of_both = []
    for synchronises in (False, True):
        trainer = Trainer(run, tmp_path / str(synchronises), log=messages.append)
        captured = GraphedSteps(trainer.context)
        loss_of = trainer.context.loss

        def read_loss(
            views: list[Tensor], index: Tensor, loss_of: Any = loss_of, synchronises: bool = synchronises
        ) -> Tensor:
            loss: Tensor = loss_of(views, index)
            return loss if not synchronises or float(loss.detach()) else loss * 0

        trainer.context.loss = read_loss  # type: ignore[method-assign]
        losses = drain(captured.epoch(0, 0, lambda *progress: None))
        assert (captured.one.graph is None) == synchronises
        losses_of_both.append(losses)
    assert "could not be captured" in messages[-1]
    assert losses_of_both[0] == losses_of_both[1]


@on_gpu
def test_runs_in_turns_equal_runs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit: no run reads memory that another has not written yet, or writes memory that another still reads."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        runs = [Run(framework="moco", precision="bf16", **SETTINGS | {"epochs": 3, "seed": seed}) for seed in (0, 1)]
        alone = [Trainer(run, tmp_path / f"alone{run.seed}", log=quiet) for run in runs]
        for trainer in alone:
            trainer.train()
        together = [Trainer(run, tmp_path / f"turns{run.seed}", log=quiet) for run in runs]
        works = [trainer.training(StopRequests()) for trainer in together]
        while works:
            works = [work for work in works if next(work, "ended") != "ended"]
    finally:
        torch.use_deterministic_algorithms(False)
    for one, other in zip(alone, together, strict=True):
        for name, value in one.context.network.state_dict().items():
            assert torch.equal(value, other.context.network.state_dict()[name]), name


@on_gpu
def test_out_of_memory_during_capture_is_raised() -> None:
    """Also if it interrupts work on a second stream."""
    device = torch.device("cuda")
    calls = torch.zeros((), device=device)

    def step() -> None:
        with side_stream(device) as join:
            calls.add_(1)
        if torch.cuda.is_current_stream_capturing():
            torch.empty(2**50, device=device)
        join()

    graphed = GraphedStep(step, device)
    for _ in range(WARMUP_STEPS - 1):
        graphed()
    with pytest.raises(torch.OutOfMemoryError):  # the last eager call, followed by the capture
        graphed()
    torch.cuda.synchronize()
    assert float(calls) == WARMUP_STEPS


@on_gpu
def test_a_failed_capture_does_not_affect_other_graphs() -> None:
    device = torch.device("cuda")
    total, count = torch.zeros((), device=device), torch.zeros((), device=device)

    def add_random() -> None:
        total.add_(1 + torch.rand((), device=device))

    def add_after_reading() -> None:
        count.add_(1 if count.isfinite() else 0)  # the condition reads a value from the device

    good, bad = GraphedStep(add_random, device), GraphedStep(add_after_reading, device)
    for _ in range(WARMUP_STEPS + 3):
        good()
        bad()
    assert good.graph is not None
    assert bad.graph is None
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    torch.cuda.synchronize()
    assert float(count) == WARMUP_STEPS + 3
    assert float(torch.rand(3, device=device).sum()) > 0
    assert WARMUP_STEPS + 3 < float(total) < 2 * (WARMUP_STEPS + 3)
