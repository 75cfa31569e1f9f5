"""Settings from a file: TOML or run.json, and how they combine with presets and options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from contrapose.lab.training import PRESETS, Run
from contrapose.lab.training.config_file import read_config
from contrapose.lab.training.options import make_run


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_toml_with_names_of_options(tmp_path: Path) -> None:
    path = write(tmp_path / "a.toml", 'data = "my-images"\ngrad-clip = 1\nknn_every = 2\nkeep = [1, 2]\nout = "here"\n')
    expected = {"data": "my-images", "grad_clip": 1, "knn_every": 2, "keep": [1, 2], "out": "here"}
    config = read_config(path, others=["out"])
    assert config == expected
    assert isinstance(config["grad_clip"], float)  # as from --grad-clip 1, so that the run has the same name


@pytest.mark.parametrize(
    "run", [Run(), Run(loss="byol", framework="byol", head="byol-cifar", data="digits", lr_drop=0.2, knn=3, keep=(1,))]
)
def test_a_run_json_gives_the_run_back(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path / "run.json", json.dumps(run.describe()))
    config = read_config(path)
    assert make_run({}, config=config, log=pytest.fail) == run
    assert make_run({"seed": 7}, config=config, log=pytest.fail).seed == 7


def test_defaults_preset_config_user() -> None:
    """Each layer overrides the one before it."""
    preset = "dystress/cifar10"
    assert PRESETS[preset]["batch"] != 96 != PRESETS[preset]["epochs"]
    config = {"preset": preset, "epochs": 96, "seed": 1}
    run = make_run({"seed": 2}, config=config)
    assert (run.loss, run.batch, run.epochs, run.seed) == (PRESETS[preset]["loss"], PRESETS[preset]["batch"], 96, 2)
    assert make_run({}, preset="byol/cifar10", config=config).loss == PRESETS["byol/cifar10"]["loss"]
    assert config["preset"] == preset  # unchanged


def test_a_loss_in_a_file_selects_its_framework(capsys: pytest.CaptureFixture[str]) -> None:
    assert make_run({}, config={"data": "digits", "loss": "simsiam"}).framework == "simsiam"
    assert make_run({"loss": "simclr"}, config={"data": "digits", "loss": "simsiam"}).framework == "simclr"
    assert "for --loss simsiam" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "epocs = 3", "sets 'epocs', which is not an option that a file can set; did you mean 'epochs'"),
        ("a.toml", "grad-clp = 3", "did you mean 'grad-clip'"),
        ("a.toml", "zzz = 3", r"\(contrapose train --help-all lists all\)"),
        ("a.toml", "epochs = ", "a.toml is not valid TOML"),
        ("a.toml", "grad-clip = 1\ngrad_clip = 2", "sets 'grad_clip' twice"),
        ("a.toml", "[lr]\nx = 1", r"has a table \[lr\]"),
        ("a.yaml", "lr: 1", "expected a .toml file or a run.json, but .*a.yaml is neither"),
        ("run.json", "[1]", "run.json does not describe a run"),
        ("run.json", "{", "run.json does not describe a run"),
        ("run.json", '{"epocs": 3}', "does not describe a run: .*epocs"),
    ],
)
def test_bad_files_are_refused(name: str, text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"^config: .*{message}"):
        read_config(write(tmp_path / name, text))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.toml does not exist"):
        read_config(tmp_path / "a.toml")
