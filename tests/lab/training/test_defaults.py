"""Settings that are chosen before a run is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contrapose.lab.training import Run, Trainer, resolve
from contrapose.lab.training.run import AUTO

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def quiet(text: str) -> None:
    pass


def npz(path: Path, count: int = 40, side: int = 32) -> str:
    images = np.random.default_rng(0).integers(0, 256, (count, side, side, 3), dtype=np.uint8)
    np.savez(
        path,
        train_images=images,
        train_labels=np.arange(count) % 2,
        test_images=images,
        test_labels=np.arange(count) % 2,
    )
    return str(path)


def test_the_digits_keep_their_settings_and_names() -> None:
    run = Run(data="digits")
    assert (run.views, run.encoder, run.size, run.batch, run.epochs, run.lr) == ("digits", "tiny", 0, 128, 16, 0.004)
    assert Run() == Run(data="digits16")
    assert (Run().views, Run().encoder, Run().batch, Run().epochs, Run().lr) == ("digits16", "tiny", 64, 30, 0.004)
    assert run.name == "digits-simclr-a8d7e8b6"
    assert Run(lr=0).lr == 0
    assert resolve(run, CPU, log=pytest.fail) == run


def test_every_setting_is_chosen_said_and_stored(tmp_path: Path) -> None:
    messages: list[str] = []
    run = Run(data=npz(tmp_path / "mine.npz"), epochs=1, knn=3, metrics=0)
    assert set(run.auto_settings) == {"views", "encoder", "batch", "lr"}
    trainer = Trainer(run, tmp_path / "run", log=messages.append, device=CPU)
    trainer.train()
    stored = json.loads((tmp_path / "run" / "run.json").read_text())
    assert all(stored[name] != value for name, value in AUTO.items())
    assert stored["size"] == 32
    assert messages[0] == (
        "encoder small (0.31 M parameters), size 32, views simclr-cifar, batch 8, lr 0.001: chosen for 40 images of 32 pixels "
        "on a CPU; each can be set (contrapose train --help-all)"
    )
    assert Run.load(tmp_path / "run" / "run.json") == trainer.run


@pytest.mark.parametrize(
    "given",
    [
        {"views": "digits"},  # a recipe for other images, if the user wants it
        {"encoder": "resnet18"},
        {"size": 48},
        {"batch": 4, "epochs": 3, "lr": 1e-9},
        {"views": "digits", "encoder": "tiny", "batch": 16, "epochs": 16, "lr": 0.004},
    ],
)
def test_what_is_given_is_kept(given: dict[str, Any], tmp_path: Path) -> None:
    run = resolve(Run(data=npz(tmp_path / "mine.npz"), **given), CPU, log=quiet)
    assert not run.auto_settings
    assert {name: getattr(run, name) for name in given} == given
    assert bool(run.size) == ("views" not in given)  # a recipe that was given has its own size


def test_a_started_run_keeps_its_settings(tmp_path: Path) -> None:
    """The same command resumes a run, on another device and with images that came since."""
    data = npz(tmp_path / "mine.npz")
    first = Trainer(Run(data=data, epochs=1, knn=3, metrics=0), tmp_path / "run", log=quiet, device=CPU).run
    npz(tmp_path / "mine.npz", count=400, side=64)
    messages: list[str] = []
    again = resolve(Run(data=data, epochs=1, knn=3, metrics=0), GPU, log=messages.append, folder=tmp_path / "run")
    assert again == first
    assert f"as stored in {tmp_path / 'run'}" in messages[0]
    # Another data set's run is not continued.
    other = resolve(Run(data=npz(tmp_path / "other.npz", count=400)), CPU, log=quiet, folder=tmp_path / "run")
    assert other.batch == 64


@pytest.mark.parametrize(
    ("count", "device", "epochs"),
    [(40, CPU, 60), (2000, CPU, 27), (200_000, CPU, 5), (600, GPU, 400), (50_000, GPU, 103), (1_200_000, GPU, 20)],
)
def test_epochs_follow_the_number_of_steps(count: int, device: torch.device, epochs: int, tmp_path: Path) -> None:
    """Few images are seen more often."""
    np.savez_compressed(tmp_path / "mine.npz", train_images=np.zeros((count, 8, 8), np.uint8))
    batch = min(count // 4, 128 if device == CPU else 256)
    run = resolve(Run(data=str(tmp_path / "mine.npz"), encoder="tiny", batch=batch), device, log=quiet)
    assert run.epochs == epochs


def test_learning_rates_follow_optimiser_batch_and_encoder(tmp_path: Path) -> None:
    data = npz(tmp_path / "mine.npz")

    def rate(**given: Any) -> float:
        return resolve(Run(**{"data": data, "batch": 16, "encoder": "resnet18", **given}), CPU, log=quiet).lr

    assert rate() == rate(optimiser="adam") == rate(batch=8, accumulate=2) == 0.0003  # 0.001 · √(16 / 256)
    assert rate(encoder="tiny") == 0.002
    assert rate(optimiser="sgd") == 0.003
    assert rate(optimiser="lars") == 0.02


def test_processes_share_a_batch_equally(tmp_path: Path) -> None:
    run = Run(data=npz(tmp_path / "mine.npz", count=400))
    assert resolve(run, CPU, log=quiet, world_size=3).batch == 63


def test_a_training_that_cannot_work_is_refused_before_data_is_read(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.npz")
    with pytest.raises(ValueError, match=r"warmup: 10 epochs are more than the 2 .* --warmup 0.2 or more --epochs"):
        resolve(Run(data=missing, epochs=2, warmup=10.0), CPU)
    whole: dict[str, Any] = {"data": missing, "views": "simclr", "batch": 8, "epochs": 1, "lr": 0.1}
    with pytest.raises(
        ValueError, match=r"size: alexnet takes images of 32 pixels, but these views have 224; use --size 32"
    ):
        Trainer(Run(**whole, encoder="alexnet"), tmp_path / "run", log=quiet)
    with pytest.raises(ValueError, match="size: expected 8 to 1024 pixels"):
        Run(**whole, encoder="tiny", size=4)
    assert not (tmp_path / "run").exists()
    # A finished run with such settings can be read.
    assert Run.read(Run(epochs=2, warmup=10.0).describe()).warmup == 10


def test_views_are_not_guessed() -> None:
    with pytest.raises(ValueError, match=r"views: auto depends on the data; contrapose.lab.training.resolve"):
        Run(data="mine").view_maker()
