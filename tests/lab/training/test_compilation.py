"""Views and encoders are compiled in eager steps when that pays, in all processes of a run before the same step."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from processes import run_in_process_group
from run_files import records, steps_saved, weights
from tiers import first
from torch import Tensor, nn
from torch.multiprocessing.spawn import ProcessException

from contrapose.lab.modalities.images.views import Views
from contrapose.lab.networks.norms import replace_norms
from contrapose.lab.training import Run, Stopped, Trainer, compilation, eager, graphed
from contrapose.lab.training.compilation import Compilation, compilation_obstacle, compilation_pays, view_function
from contrapose.lab.training.eager import EagerSteps
from contrapose.lab.training.processes import SyncedBatchNorm
from contrapose.lab.training.progress import Progress
from contrapose.lab.training.steps import choose_steps

SETTINGS: dict[str, Any] = {
    "limit": 64, "batch": 8, "epochs": 3, "knn": 5, "knn_every": 3, "metrics": 0, "threads": 1, "optimiser": "sgd", "lr": 0.01,
}  # fmt: skip
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def quiet(text: str) -> None:
    return


def trainer_of(run: Run, folder: Path, log: Callable[[str], None] = quiet, *, compiles: bool = True) -> Trainer:
    """Return a trainer on the CPU whose steps are compiled when that pays, as they are on a GPU."""
    trainer = Trainer(run, folder, log=log, device=torch.device("cpu"))
    trainer.steps = EagerSteps(trainer.context, compiles=compiles)
    trainer.model.evaluate_in(lambda: torch.compiler.set_stance("force_eager"))
    return trainer


def patches(*, pays: bool = True, backend: str = "aot_eager") -> ExitStack:
    """Let compilation pay as soon as steps have been measured; the default backend traces and differentiates, but is fast."""
    stack = ExitStack()
    stack.enter_context(patch.object(compilation, "compilation_pays", lambda seconds: pays and seconds > 0))
    # On a CPU, views compute only what is chosen, which the compiler cannot trace.
    stack.enter_context(patch.object(Views, "uses_kernels", lambda self, device: True))
    compile_module = nn.Module.compile
    stack.enter_context(
        patch.object(nn.Module, "compile", lambda self, **options: compile_module(self, backend=backend, **options))
    )
    return stack


def test_long_runs_are_compiled() -> None:
    assert not compilation_pays(400 * 31 * 0.0086)  # 8,000 photographs for 400 epochs: two minutes
    assert compilation_pays(200 * 390 * 0.0055)  # CIFAR-10 for 200 epochs: seven minutes


@pytest.mark.parametrize(("long_epoch", "samples", "step"), first(1, [(300.0, 48, 6), (-1.0, 176, 20)]))
def test_when_a_run_is_compiled(
    long_epoch: float, samples: int, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first epoch, or within it if it is long. Only the compiler itself is left out here, so results are equal."""
    steps = list[int]()

    def compile_nothing(self: Compilation) -> Callable[..., list[Tensor]]:
        steps.append(trainer.step if long_epoch > 0 else taken[-1])
        self.is_compiled = True
        return view_function(self.context)

    run, taken, messages = Run(**SETTINGS | {"limit": samples, "epochs": 2}), list[int](), list[str]()
    plain = Trainer(run, tmp_path / "plain", log=quiet, device=torch.device("cpu"))
    plain.train()
    trainer = trainer_of(run, tmp_path / "compiled", messages.append)
    trainer.on_step = lambda progress: taken.append(progress.step)
    monkeypatch.setattr(compilation, "compilation_pays", lambda seconds: seconds > 0)
    monkeypatch.setattr(eager, "LONG_EPOCH", long_epoch)
    monkeypatch.setattr(Compilation, "compile", compile_nothing)
    trainer.train()
    assert steps == [step]
    assert [text.split(":")[0] for text in messages if "compil" in text] == [
        "compiling, which takes about a minute",
        "compiled",
    ]
    assert weights(tmp_path / "plain") == weights(tmp_path / "compiled")


@pytest.mark.parametrize(
    ("change", "obstacle", "reason"),
    [
        ({"world_size": 2}, "2 processes exchange embeddings within a step", ""),
        ({"world_size": 2, "is_sharded": True}, "2 processes", "with --shard, parameters are gathered"),
        (
            {"run": Run(**SETTINGS, grad_cache=True, accumulate=2)},
            "with --grad-cache, the batches",
            "with --grad-cache, comp",
        ),
        ({"recomputes": True}, "with --recompute, the backward pass draws", "with --recompute, compiled blocks"),
    ],
)
def test_what_is_compiled(
    change: dict[str, Any], obstacle: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Views and encoders of several processes are, unless something would make their gradients wrong."""
    for module in (compilation, graphed):
        monkeypatch.setattr(module, "find_spec", lambda name: True)
    messages, context = list[str](), Trainer(Run(**SETTINGS), tmp_path, log=quiet, device=torch.device("cpu")).context
    context = replace(context, device=torch.device("cuda"), log=messages.append, **change)
    steps = choose_steps(context)
    assert isinstance(steps, EagerSteps)
    assert messages[0].startswith(f"running eagerly, since {obstacle}")
    assert compilation_obstacle(context).startswith(reason)
    assert ("not compiled, since" in messages[0]) == (steps.compilation is None) == bool(reason)


def test_nothing_is_compiled_if_the_compiler_is_disabled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._dynamo.config, "disable", True)
    context = Trainer(Run(**SETTINGS), tmp_path, log=quiet, device=torch.device("cpu")).context
    assert compilation_obstacle(context) == "TORCHDYNAMO_DISABLE is set"


def test_replaced_batch_norms_keep_their_parameters() -> None:
    """The optimiser, DistributedDataParallel and checkpoints know them."""
    network = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)))
    before = network.state_dict(keep_vars=True)
    after = replace_norms(network, SyncedBatchNorm).state_dict(keep_vars=True)
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)


def train_in_process(rank: int, world_size: int, out: str, *, compiles: bool = True, number: int = 0) -> None:
    """Train as one of several processes; the first one may receive a signal in the second step after the compilation."""
    os.environ |= {"WORLD_SIZE": str(world_size), "RANK": str(rank)}
    # Only the first process measures that compilation pays.
    with patches(pays=rank == 0):
        trainer = trainer_of(Run(**SETTINGS), Path(out), compiles=compiles)
        steps = trainer.steps
        assert isinstance(steps, EagerSteps)

        def on_step(progress: Progress) -> None:
            if steps.views is not None and steps.done == 2:
                os.kill(os.getpid(), number)

        if number:
            trainer.on_step = on_step
            with pytest.raises(Stopped, match="after step 10"):
                trainer.train()
            return
        trainer.train()
        assert (steps.views is not None, steps.done) in (
            (True, 16),
            (False, 24),
            (True, 8),
        )  # since the start, or the compilation
        torch.save(trainer.context.network.state_dict(), Path(out) / f"weights-{rank}.pt")


def train_on_one_gpu(rank: int, world_size: int, out: str, *, fast: bool) -> None:
    """Train as one of several processes that share a GPU, which is possible with gloo alone."""
    os.environ |= {"WORLD_SIZE": str(world_size), "RANK": str(rank)}
    # A higher learning rate amplifies rounding from step to step.
    run = Run(**SETTINGS | {"limit": 640, "batch": 64, "lr": 1e-3, "precision": "fp32"})
    with patch.object(compilation, "compilation_pays", lambda seconds: rank == 0 and seconds > 0):
        trainer = Trainer(run, Path(out), log=quiet, fast=fast)
        trainer.train()
    assert isinstance(trainer.steps, EagerSteps)
    assert (trainer.steps.views is not None) == fast
    assert any(isinstance(module, nn.SyncBatchNorm) for module in trainer.context.network.modules()) == (not fast)
    torch.save(trainer.context.network.state_dict(), Path(out) / f"weights-{rank}.pt")


def weights_of(folder: Path, rank: int) -> dict[str, Tensor]:
    loaded: dict[str, Tensor] = torch.load(folder / f"weights-{rank}.pt", map_location="cpu")
    return loaded


def check_equal_ranks(folder: Path) -> None:
    for name, value in weights_of(folder, 0).items():
        assert torch.equal(value, weights_of(folder, 1)[name]), name


def check_close(one: Path, other: Path) -> None:
    for name, value in weights_of(one, 0).items():
        torch.testing.assert_close(value, weights_of(other, 0)[name], rtol=1e-4, atol=1e-5)
    losses = ([record["loss"] for record in records(folder)] for folder in (one, other))
    assert next(losses) == pytest.approx(next(losses), rel=1e-4)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in two processes that is compiled after its first epoch."""
    folder = tmp_path_factory.mktemp("compiled") / "run"
    run_in_process_group(train_in_process, 2, folder)
    return folder


@pytest.mark.thorough
def test_compiled_steps_of_two_processes_equal_eager_ones(compiled: Path, tmp_path: Path) -> None:
    run_in_process_group(partial(train_in_process, compiles=False), 2, tmp_path / "run")
    check_equal_ranks(compiled)
    check_close(compiled, tmp_path / "run")


@pytest.mark.parametrize("number", [
    pytest.param(signal.SIGTERM, marks=pytest.mark.thorough), pytest.param(signal.SIGKILL, marks=pytest.mark.slow),
])  # fmt: skip
def test_a_compiled_run_resumes(number: int, compiled: Path, tmp_path: Path) -> None:
    """It starts with eager steps and is compiled again, so its weights equal those of an uninterrupted run up to rounding."""
    folder, is_killed = tmp_path / "run", number == signal.SIGKILL
    with pytest.raises(ProcessException) if is_killed else nullcontext():
        run_in_process_group(partial(train_in_process, number=number), 2, folder)
    assert max(steps_saved(folder)) == (8 if is_killed else 10)
    run_in_process_group(train_in_process, 2, folder)
    check_equal_ranks(folder)
    check_close(compiled, folder)


@on_gpu
@pytest.mark.thorough
def test_two_processes_are_compiled_on_a_gpu(tmp_path: Path) -> None:
    for name in ("eager", "compiled"):
        run_in_process_group(partial(train_on_one_gpu, fast=name == "compiled"), 2, tmp_path / name)
        check_equal_ranks(tmp_path / name)
    losses = ([record["loss"] for record in records(tmp_path / name)] for name in ("eager", "compiled"))
    assert next(losses) == pytest.approx(next(losses), rel=0.02)
