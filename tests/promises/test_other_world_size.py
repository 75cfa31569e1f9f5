"""A run that is stopped and resumed on another number of processes continues as if it had kept its number.

In float64: in float32 the difference grows to a hundredth of the loss within eight steps.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Promise
from double_precision import float64_trainer
from framework_cases import FRAMEWORK_CASES
from processes import run_in_process_group

from contrapose.lab.training import Run, Stopped, Trainer
from contrapose.lab.training.checkpoints import checkpoint
from contrapose.lab.training.records.files import read_records

STEPS = 8
STOPS = {2: (6,), 3: (3, 6)}  # by the number of parts of a run; inside the epochs, of four steps each
TOLERANCE = 1e-11
SETTINGS: dict[str, Any] = {
    "limit": 64,
    "batch": 16,
    "epochs": 2,
    "knn": 5,
    "knn_every": 2,
    "metrics": 0,
    "warmup": 0.5,
}
# Momentum and queue, a bank, and the state that a loss keeps for each image are all continued by other processes.
RUNS = {
    "simclr": Run(**SETTINGS),
    "moco": Run(**SETTINGS, framework="moco", queue=64, optimiser="sgd", lr=0.01),
    "memory-bank": Run(**SETTINGS, framework="memory-bank", optimiser="lars", lr=0.1),
    "isogclr": Run(**SETTINGS, loss="isogclr"),
    # With SGD: AdamW divides gradients that are zero but for rounding, such as that of a bias that the loss ignores, by their size.
    **{
        f"{name} from the registry": Run(**SETTINGS, **settings, optimiser="sgd", lr=0.01)
        for name, settings in FRAMEWORK_CASES.items()
    },
}
# Runs of one process that two cannot continue.
REFUSED = {
    "batch": Run(**{**SETTINGS, "batch": 15}),
    "norm_splits": Run(**SETTINGS, framework="moco", queue=64, norm_splits=2),
}


def train(folder: Path, run: Run, rank: int, world_size: int, *, stop: int = 0) -> None:
    """Train to the end, or to a signal that one process receives in the step `stop`."""
    os.environ |= {"WORLD_SIZE": str(world_size), "RANK": str(rank)}

    def on_step(progress: Any) -> None:
        if progress.step == stop:
            trainer.requests(15)

    trainer = float64_trainer(run, folder, on_step=on_step)
    if not stop:
        trainer.train()
        return
    with pytest.raises(Stopped, match=f"after step {stop}"):
        trainer.train()


def train_all(rank: int, world_size: int, out: str, *, stop: int = 0) -> None:
    for name, run in RUNS.items():
        train(Path(out) / name, run, rank, world_size, stop=stop)


def outcome(folder: Path) -> dict[str, torch.Tensor]:
    """Return the losses of the epochs, and what the last checkpoint holds: weights, optimiser, queue, bank and state."""
    saved = checkpoint.latest(folder / "checkpoints")
    assert saved is not None
    assert saved.step == STEPS
    losses = torch.tensor([record["loss"] for record in read_records(folder)], dtype=torch.float64)
    assert len(losses) == 2
    return {"losses": losses, **saved.tensors}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, torch.Tensor]]:
    """The runs on one process, without a stop."""
    folder = tmp_path_factory.mktemp("whole")
    run_in_process_group(train_all, 1, folder)
    return {name: outcome(folder / name) for name in RUNS}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("world_sizes", [(1, 2), (2, 1), (1, 2, 1)], ids=str)
@pytest.mark.slow
def test_resumed_on_another_number_of_processes(
    world_sizes: tuple[int, ...], whole: dict[str, dict[str, torch.Tensor]], tmp_path: Path, promise: Promise
) -> None:
    for world_size, stop in zip(world_sizes, (*STOPS[len(world_sizes)], 0), strict=True):
        run_in_process_group(partial(train_all, stop=stop), world_size, tmp_path)
    different = dict[str, float]()
    for name, expected in whole.items():
        resumed = outcome(tmp_path / name)
        assert resumed.keys() == expected.keys()
        assert resumed["state.network.encoder.network.0.weight"].dtype == torch.float64
        for key, value in expected.items():
            scale = max([1.0, *value.double().abs().flatten().tolist()])  # running variances reach 100,000
            difference = max((resumed[key].double() - value.double()).abs().flatten().tolist(), default=0.0) / scale
            promise.case(difference)
            if difference > TOLERANCE:
                different[f"{name}: {key}"] = difference
    assert different == {}


def refuse_all(rank: int, world_size: int, out: str) -> None:
    """Write why runs that one process has started are refused."""
    os.environ |= {"WORLD_SIZE": str(world_size), "RANK": str(rank)}
    for name, run in REFUSED.items():
        with pytest.raises(ValueError, match=name) as caught:
            Trainer(run, Path(out) / name, log=lambda text: None)
        Path(f"{out}/{name}.{rank}").write_text(str(caught.value))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_what_two_processes_cannot_continue_is_refused(tmp_path: Path, promise: Promise) -> None:
    for name, run in REFUSED.items():
        Trainer(run, tmp_path / name, log=lambda text: None)
    run_in_process_group(refuse_all, 2, tmp_path)
    for rank in range(2):
        assert (tmp_path / f"batch.{rank}").read_text() == "batch: 15 images cannot be shared equally by 2 processes"
        message = (tmp_path / f"norm_splits.{rank}").read_text()
        assert message == "norm_splits: 2 processes synchronise their batch norms; leave it at 1"
        promise.case()
