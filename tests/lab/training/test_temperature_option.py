"""`--temperature` becomes part of the loss, so that a run has one description and one name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import error_message

from contrapose.lab.cli import main
from contrapose.lab.settings import Settings
from contrapose.lab.training import Run
from contrapose.lab.training.options import make_run


def ignore(text: str) -> None:
    """Log nothing."""


@pytest.mark.parametrize(
    ("given", "preset", "temperature", "loss"),
    [
        ({"loss": "nt_xent"}, "", "0.2", "nt_xent(temperature=0.2)"),
        ({"loss": "dcl(hardness=9.0)"}, "", "0.07:0.2", "dcl(hardness=9.0, temperature=cosine(0.07, 0.2))"),
        ({}, "", "0.5", "simclr(temperature=0.5)"),  # the default loss, simclr(temperature=0.2)
        ({}, "nnclr/cifar10", "0.3", "nnclr(temperature=0.3)"),  # the preset has nnclr(temperature=0.5)
        ({"loss": "supcon"}, "", "0.1", "supcon(temperature=0.1)"),
    ],
)
def test_a_run_equals_the_run_with_the_loss_written_out(
    given: Settings, preset: str, temperature: str, loss: str
) -> None:
    run = make_run(given, preset=preset, temperature=temperature, log=ignore)
    assert run.loss == loss
    written_out: dict[str, Any] = {**given, "loss": loss}
    assert run == make_run(written_out, preset=preset, log=ignore)
    assert run.name == make_run(written_out, preset=preset, log=ignore).name
    assert Run.read(run.describe()) == run


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", "--limit", "64", "--batch", "32", "--epochs", "1", "--knn", "3", "--metrics", "0"]
    main([*arguments, "--loss", "nt_xent", "--temperature", "0.1", "--out", str(tmp_path / "run")])
    assert json.loads((tmp_path / "run" / "run.json").read_text())["loss"] == "nt_xent(temperature=0.1)"
    # The same run written out: it is already done, and no other run.
    main([*arguments, "--loss", "nt_xent(temperature=0.1)", "--out", str(tmp_path / "run")])
    # And from a config file.
    (tmp_path / "a.toml").write_text('loss = "nt_xent"\ntemperature = 0.1\n')
    main([*arguments, "--config", str(tmp_path / "a.toml"), "--out", str(tmp_path / "run")])
    both = error_message(capsys, "train", "--loss", "nt_xent(temperature=0.1)", "--temperature", "0.2")
    assert "already has temperature=0.1, and 0.2 was given too; leave out one of them" in both
    assert "byol has no setting temperature" in error_message(capsys, "train", "--loss", "byol", "--temperature", "0.2")
    assert "LOW:HIGH" in error_message(capsys, "train", "--temperature", "0.2:0.1")


@pytest.mark.thorough
def test_explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["explain", "nt_xent", "--temperature", "0.07:0.2", "-o", str(tmp_path / "a.png")])
    assert "nt_xent(temperature=cosine(0.07, 0.2))" in capsys.readouterr().out
