"""NaN or infinity stops a run before its weights change, and the message names the step and the samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Promise
from PIL import Image
from streaming import streamed_run, write_folder

from contrapose.lab.training import Diverged, Run, Trainer

RUN = Run(limit=128, batch=32, epochs=2, knn_every=2, knn=5, metrics=0)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("source", ["loss", "gradient"])
def test_nan_stops_before_the_weights_change(source: str, value: float, tmp_path: Path, promise: Promise) -> None:
    trainer = Trainer(RUN, tmp_path, log=lambda text: None)
    if source == "loss":
        trainer.context.criterion.objective = lambda pairs, **settings: pairs.positives().mean() * value
    else:
        next(trainer.context.network.parameters()).register_hook(lambda g: g * value)
    before = {name: tensor.clone() for name, tensor in trainer.context.network.named_parameters()}
    with pytest.raises(Diverged, match=rf"the {source} in step 1 \(epoch 1\) is not finite.*Its images are \["):
        trainer.train()
    for name, tensor in trainer.context.network.named_parameters():
        assert torch.equal(tensor, before[name])
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
