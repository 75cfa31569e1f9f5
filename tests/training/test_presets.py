"""The presets hold the papers' settings and mean the same in Python and on the command line."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tyro
from tyro.conf import OmitArgPrefixes

from contrapose.cli import main
from contrapose.cli.train import Train, expand_preset
from contrapose.training import PRESETS, preset


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_is_a_run(name: str) -> None:
    assert preset(name).epochs >= 20


def test_settings_of_the_papers() -> None:
    run = preset("dystress/cifar10")
    assert (run.lr, run.batch, run.epochs, run.weight_decay, run.encoder) == (0.06, 128, 200, 5e-4, "resnet18-cifar")
    run = preset("behaviour/cifar10")
    assert (run.lr, run.milestones, run.framework, run.head) == (0.03, (160, 190), "memory-bank", "linear")
    assert preset("cacr/cifar10-k4").view_count == 5
    assert preset("balanced/cifar10").batch == 512


def test_a_preset_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    main(["presets"])
    assert "cacr/cifar10-k4" in capsys.readouterr().out
    with pytest.raises(SystemExit) as exit_info:
        main(["train", "--preset", "dystress/cifar"])
    assert exit_info.value.code == 2
    assert "did you mean 'dystress/cifar10'" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_is_the_same_run_on_the_command_line(name: str) -> None:
    arguments = expand_preset(["train", "--preset", name, "--seed", "3"])
    assert tyro.cli(Train, args=arguments[1:], config=(OmitArgPrefixes,)).run == replace(preset(name), seed=3)
