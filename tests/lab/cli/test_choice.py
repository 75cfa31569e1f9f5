"""`contrapose train --loss` chooses the framework and the head that the loss needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from contrapose.lab.cli import main
from contrapose.lab.cli.train import choose_framework, given_options

BYOL = ["--framework", "byol", "--head", "byol-cifar", "--predictor", "1024"]


def test_options_that_are_given() -> None:
    given = given_options(["train", "--loss=byol", "--knn-every", "2", "--rising", "--out", "x"])
    assert given == {"loss": "byol", "knn_every": "2", "rising": "--out", "out": "x"}


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        (["--loss", "byol"], BYOL),
        (["--loss=byol"], BYOL),
        (["--loss", "byol", "--head", "byol"], [*BYOL[:2], *BYOL[4:]]),
        (["--framework", "byol", "--loss", "byol"], BYOL[2:]),
        (["--framework", "moco-v3", "--loss", "byol"], []),
        (["--loss", "dystress"], []),
        (["--preset", "byol/imagenet"], []),  # its loss and head are those of the preset
        (["--preset", "dystress/cifar10", "--loss", "byol"], BYOL),
        (["--preset", "behaviour/cifar10", "--loss", "byol"], []),  # whose framework is a memory bank
    ],
    ids=" ".join,
)
def test_options_are_chosen_before_those_that_are_given(given: list[str], chosen: list[str]) -> None:
    assert choose_framework(["train", *given]) == ["train", *chosen, *given]


def test_train_with_byol(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--limit", "64", "--epochs", "1", "--batch", "32", "--metrics", "0", "--predictor", "64"]
    main(["train", "--loss", "byol", *arguments, "--out", str(tmp_path / "run")])
    output = capsys.readouterr().out
    assert "for --loss byol: framework byol, head byol-cifar; each can be set (contrapose train --help)\n" in output
    settings = json.loads((tmp_path / "run" / "run.json").read_bytes())
    assert {name: settings[name] for name in ("framework", "head", "predictor")} == {
        "framework": "byol", "head": "byol-cifar", "predictor": 64,
    }  # fmt: skip
