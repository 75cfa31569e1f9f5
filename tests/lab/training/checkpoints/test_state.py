"""A checkpoint resumes only the run that it fits: each tensor that is missing, unexpected or of another shape is named."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from contrapose.lab.training import Run, Trainer
from contrapose.lab.training.checkpoints import checkpoint
from contrapose.lab.training.checkpoints.checkpoint import Checkpoint

RUN = Run(limit=64, batch=32, epochs=2, knn=3, metrics=0, head="linear", width=4)
Change = Callable[[dict[str, Tensor]], dict[str, Tensor]]


def quiet(text: str) -> None:
    pass


def trained(folder: Path, run: Run) -> Checkpoint:
    """Train a run and return its last checkpoint, which is deleted."""
    Trainer(run, folder, log=quiet).train()
    saved = checkpoint.latest(folder / "checkpoints")
    assert saved is not None
    shutil.rmtree(folder / "checkpoints")
    return saved


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Checkpoint]:
    folder = tmp_path_factory.mktemp("state") / "run"
    return folder, trained(folder, RUN)


def without(pattern: str) -> Change:
    return lambda tensors: {name: t for name, t in tensors.items() if not re.match(pattern, name)}


def with_tensors(**changes: Tensor) -> Change:
    return lambda tensors: tensors | {name.replace("__", "."): t for name, t in changes.items()}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (without("optimiser"), "missing optimiser.0.exp_avg, optimiser.0.exp_avg_sq, optimiser.0.step"),
        (without(r"optimiser\.\d"), "missing optimiser.0.exp_avg"),
        (without(r"optimiser\.3\."), "missing optimiser.3.exp_avg, optimiser.3.exp_avg_sq, optimiser.3.step"),
        (without(r"optimiser\.3\.exp_avg_sq"), "missing optimiser.3.exp_avg_sq, unexpected nothing"),
        (with_tensors(optimiser__3__velocity=torch.zeros(1)), "missing nothing, unexpected optimiser.3.velocity"),
        (with_tensors(optimiser__99__step=torch.zeros(())), "missing nothing, unexpected optimiser.99.step"),
        (with_tensors(optimiser__x__step=torch.zeros(())), "missing nothing, unexpected optimiser.x.step"),
        (
            with_tensors(optimiser__0__exp_avg=torch.zeros(())),
            "optimiser.0.exp_avg has the shape () instead of (16, 3,",
        ),
        (with_tensors(optimiser__0__step=torch.zeros(2)), "optimiser.0.step has the shape (2,) instead of ()"),
        (with_tensors(scaler__scale=torch.zeros(())), "missing nothing, unexpected scaler.scale"),
        (with_tensors(part=torch.zeros(2)), "missing nothing, unexpected part"),
        (with_tensors(other=torch.zeros(2)), "missing nothing, unexpected other"),
        (without("state.network.projector.bias"), "missing network.projector.bias, unexpected nothing"),
    ],
)
def test_tensors_that_do_not_fit(change: Change, expected: str, finished: tuple[Path, Checkpoint]) -> None:
    folder, saved = finished
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    checkpoint.save(folder / "checkpoints", replace(saved, tensors=change(dict(saved.tensors))))
    with pytest.raises(
        ValueError, match=r"out: the checkpoint of step 4 .* does not fit the run's settings: "
    ) as error:
        Trainer(RUN, folder, log=quiet).train()
    assert expected in str(error.value)


def test_a_step_beyond_the_run(finished: tuple[Path, Checkpoint]) -> None:
    folder, saved = finished
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    checkpoint.save(folder / "checkpoints", replace(saved, step=6, record=None))
    with pytest.raises(ValueError, match=r"the checkpoint of step 6 .*: the run has 4 steps"):
        Trainer(RUN, folder, log=quiet).train()


def test_a_step_inside_an_epoch_needs_the_part_that_is_done(finished: tuple[Path, Checkpoint]) -> None:
    folder, saved = finished
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    checkpoint.save(folder / "checkpoints", replace(saved, step=3, record=None))
    with pytest.raises(ValueError, match=r"the checkpoint of step 3 .*: missing part, unexpected nothing"):
        Trainer(RUN, folder, log=quiet).train()


@pytest.mark.thorough
def test_the_scale_of_gradients_is_needed_in_fp16(tmp_path: Path) -> None:
    run = replace(RUN, precision="fp16")
    saved = trained(tmp_path, run)
    tensors = without("scaler.scale")(dict(saved.tensors))
    checkpoint.save(tmp_path / "checkpoints", replace(saved, tensors=tensors))
    with pytest.raises(ValueError, match=r"missing scaler.scale, unexpected nothing"):
        Trainer(run, tmp_path, log=quiet).train()


def test_a_parameter_without_a_gradient_has_no_state(tmp_path: Path) -> None:
    """A pooling layer of a text encoder may be unused; an optimiser keeps nothing for it."""

    def trainer() -> Trainer:
        trainer = Trainer(RUN, tmp_path, log=quiet)
        trainer.context.optimiser.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
        return trainer

    trainer().train()
    resumed = trainer()
    assert resumed.load_latest()
    assert resumed.complete
