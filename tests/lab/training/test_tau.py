"""A run with TaU from the command line: trained, resumed, evaluated, embedded and exported."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import contrapose
from contrapose.lab.cli import main
from contrapose.lab.training import load
from contrapose.lab.training.checkpoints.checkpoint import latest

OPTIONS = ["--loss", "tau(base=0.07)", "--limit", "96", "--batch", "32", "--knn", "5", "--metrics", "48"]


@pytest.mark.thorough
def test_tau_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    constant = ["--schedule", "constant"]  # so that one epoch and one more equal two
    main(["train", *OPTIONS, *constant, "--epochs", "2", "--out", str(other)])
    main(["train", *OPTIONS, *constant, "--epochs", "1", "--out", str(run)])
    main(["train", *OPTIONS, *constant, "--epochs", "2", "--extend", "--out", str(run)])
    states = [latest(folder / "checkpoints") for folder in (run, other)]
    assert states[0] is not None
    assert states[1] is not None
    assert all(torch.equal(tensor, states[1].tensors[name]) for name, tensor in states[0].tensors.items())
    capsys.readouterr()
    main(["evaluate", str(run), "--metrics"])
    assert json.loads(capsys.readouterr().out)["uniformity"] < 0
    main(["embed", str(run), "digits", "-o", str(tmp_path / "features.npz")])
    main(["export", str(run), "-o", str(tmp_path / "encoder.safetensors")])
    images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    features = load(run).embed(images)
    assert np.load(tmp_path / "features.npz")["test_features"].shape[1] == features.shape[1]
    torch.testing.assert_close(contrapose.load(tmp_path / "encoder.safetensors").embed(images), features)


def test_the_certainty_differs_between_images_and_is_no_coordinate(tmp_path: Path) -> None:
    main(["train", *OPTIONS, "--epochs", "1", "--out", str(tmp_path / "run")])
    model = load(tmp_path / "run").eval()
    inputs = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        output = model.projector(model.encoder(inputs))
    assert model.project(inputs).shape == (8, output.shape[1] - 1)
    assert float(output[:, -1].std()) > 0
