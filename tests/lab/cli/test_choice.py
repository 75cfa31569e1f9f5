"""Options become a run: `contrapose train --loss` chooses the framework and the head that the loss needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tyro
from tyro.conf import OmitArgPrefixes

from contrapose.lab.cli import main
from contrapose.lab.cli.train import Train
from contrapose.lab.training.options import make_run

BYOL = {"framework": "byol", "head": "byol-cifar", "predictor": 1024}


def parse(*arguments: str) -> Train:
    return tyro.cli(Train, args=list(arguments), config=(OmitArgPrefixes,))


def test_only_what_is_given_is_parsed() -> None:
    """A value that equals the default, and the last of several."""
    command = parse(
        "--loss=byol", "--knn-every", "4", "--no-grad-cache", "--keep", "1", "2", "--seed", "1", "--seed", "2"
    )
    assert command.given == {"loss": "byol", "knn_every": 4, "grad_cache": False, "keep": (1, 2), "seed": 2}
    assert parse().given == {}


@pytest.mark.parametrize(
    ("arguments", "chosen"),
    [
        (["--loss", "byol"], BYOL),
        (["--loss=byol"], BYOL),
        (["--loss", "byol", "--head", "byol"], {**BYOL, "head": "byol"}),
        (["--framework", "byol", "--loss", "byol"], BYOL),
        (["--framework", "moco-v3", "--loss", "byol"], {"framework": "moco-v3", "head": "simclr", "predictor": 0}),
        (["--loss", "dystress"], {"framework": "simclr", "head": "simclr"}),
        (["--preset", "byol/imagenet"], {"framework": "byol", "head": "byol", "predictor": 0}),
        # The preset has a head for ImageNet and leaves the predictor to its framework.
        (["--preset", "byol/imagenet", "--loss", "byol"], {"framework": "byol", "head": "byol", "predictor": 1024}),
        (["--preset", "dystress/cifar10", "--loss", "byol"], {**BYOL, "lr": 0.06}),
    ],
    ids=" ".join,
)
def test_layers_of_settings(arguments: list[str], chosen: dict[str, object]) -> None:
    command = parse(*arguments)
    run = make_run(command.given, preset=command.preset)
    assert {name: getattr(run, name) for name in chosen} == chosen


def test_a_preset_keeps_its_framework() -> None:
    with pytest.raises(ValueError, match="needs a predictor and a target without gradient, which memory-bank does not"):
        make_run({"loss": "byol"}, preset="behaviour/cifar10")


@pytest.mark.parametrize(
    ("given", "preset", "expected"),
    [
        ({"data": "pydoc"}, "", {"modality": "text", "framework": "simcse", "loss": "simclr"}),
        ({"data": "pydoc", "loss": "nt_xent"}, "", {"modality": "text", "framework": "simcse", "loss": "nt_xent"}),
        ({"data": "shapes"}, "", {"modality": "captions", "framework": "two_towers", "weight_decay": 0.1}),
        ({"data": "pydoc"}, "simcse/wiki1m", {"modality": "text", "head": "simcse", "warmup": 0.0}),
        ({"data": "digits"}, "", {"modality": "images", "framework": "simclr"}),
    ],
)
def test_the_modality_is_that_of_the_data(given: dict[str, str], preset: str, expected: dict[str, object]) -> None:
    run = make_run(given, preset=preset)
    assert {name: getattr(run, name) for name in expected} == expected


def test_train_with_byol(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--limit", "64", "--epochs", "1", "--batch", "32", "--metrics", "0", "--predictor", "64"]
    main(["train", "--loss", "byol", *arguments, "--out", str(tmp_path / "run")])
    output = capsys.readouterr().out
    assert "for --loss byol: framework byol, head byol-cifar; each can be set (contrapose train --help-all)\n" in output
    settings = json.loads((tmp_path / "run" / "run.json").read_bytes())
    assert {name: settings[name] for name in ("framework", "head", "predictor")} == {
        "framework": "byol", "head": "byol-cifar", "predictor": 64,
    }  # fmt: skip
