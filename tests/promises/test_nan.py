"""NaN or infinity stops a run before its weights change, and the message names the step and the samples."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import captioned
import numpy as np
import pytest
import torch
from conftest import Promise
from framework_cases import FRAMEWORK_CASES
from PIL import Image
from streaming import streamed_run, write_folder

from contrapose.lab.modalities.text.settings import TEXT_SETTINGS
from contrapose.lab.training import Diverged, Run, Trainer

SOURCES = ("loss", "gradient")
RUN = Run(limit=128, batch=32, epochs=2, knn_every=2, knn=5, metrics=0)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("source", SOURCES)
def test_nan_stops_before_the_weights_change(source: str, value: float, tmp_path: Path, promise: Promise) -> None:
    check_nan(Trainer(RUN, tmp_path, log=lambda text: None), source, value)
    promise.case()


def sentences(folder: Path) -> Path:
    path = folder / "sentences.txt"
    path.write_text("".join(f"This is sentence {number}, and it has words.\n" for number in range(48)))
    return path


def text_run(folder: Path) -> Run:
    small = {"batch": 8, "epochs": 2, "lr": 1e-3, "encoder": "tiny", "views": "dropout", "metrics": 0}
    return Run(data=str(sentences(folder)), **{**TEXT_SETTINGS, **small})


OTHER_RUNS: dict[str, Callable[[Path], Run]] = {
    "moco-v3": lambda folder: replace(RUN, **FRAMEWORK_CASES["moco-v3"]),
    "grad-cache": lambda folder: replace(RUN, batch=16, accumulate=2, grad_cache=True),
    "text": text_run,
    "captions": lambda folder: captioned.run_of(captioned.write_folder(folder / "captions")),
}


@pytest.mark.parametrize(
    "name", [*(name for name in OTHER_RUNS if name != "text"), pytest.param("text", marks=pytest.mark.thorough)]
)
def test_nan_stops_other_runs_too(name: str, tmp_path: Path, promise: Promise) -> None:
    run = OTHER_RUNS[name](tmp_path)
    for source in SOURCES:
        trainer = Trainer(run, tmp_path / source, log=lambda text: None, data_root=tmp_path / "cache")
        check_nan(trainer, source, torch.nan)
        promise.case()


def check_nan(trainer: Trainer, source: str, value: float) -> None:
    """Train with a loss or a gradient that is not finite: the message names the step and samples, and no weight changes."""
    if source == "loss":
        trainer.context.criterion.objective = lambda pairs, **settings: pairs.positives().mean() * value
    else:
        next(trainer.context.network.parameters()).register_hook(lambda g: g * value)
    before = {name: tensor.clone() for name, tensor in trainer.context.network.named_parameters()}
    noun = trainer.context.run.kind.noun
    with pytest.raises(Diverged, match=rf"the {source} in step 1 \(epoch 1\) is not finite.*Its {noun} are \[\d"):
        trainer.train()
    for name, tensor in trainer.context.network.named_parameters():
        assert torch.equal(tensor, before[name])


def test_a_loss_that_its_type_cannot_hold_stops_the_run(tmp_path: Path, promise: Promise) -> None:
    trainer = Trainer(replace(RUN, loss="vicreg"), tmp_path, log=lambda text: None)
    criterion, exact = trainer.context.criterion, trainer.context.criterion.objective
    criterion.objective = lambda embeddings, **settings: exact(replace(embeddings, z=embeddings.z * 1e15), **settings)
    with pytest.raises(Diverged, match=r"the loss in step 1 \(epoch 1\) is not finite.*Its images are \[\d"):
        trainer.train()
    promise.case()


def test_a_broken_test_image_is_not_called_divergence(tmp_path: Path, promise: Promise) -> None:
    folder = write_folder(tmp_path / "mine")
    broken = sorted((folder / "test").rglob("*.png"))[0]
    broken.write_bytes(broken.read_bytes()[:100])
    with pytest.raises(ValueError, match=re.escape(broken.name)):
        Trainer(streamed_run(folder), tmp_path / "run", log=lambda text: None, workers=0).train()
    promise.case()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_image_with_nan_is_named(value: float, tmp_path: Path, promise: Promise) -> None:
    folder = write_folder(tmp_path / "mine")
    (folder / "train" / "cat" / "7.png").unlink()
    Image.fromarray(np.full((40, 40), value, np.float32)).save(folder / "train" / "cat" / "7.tif")
    with pytest.raises(
        ValueError, match=r"7\.tif, cannot be read: expected floating-point numbers from 0 to 1, got (nan|inf)"
    ):
        Trainer(streamed_run(folder), tmp_path / "run", log=lambda text: None, workers=0).train()
    assert not (tmp_path / "run" / "checkpoints").exists()
    promise.case()
