"""Every method of the catalogue has a framework, and a loss in a framework that does not fit is refused."""

from __future__ import annotations

import pytest

from contrapose.lab.training import Run
from contrapose.lab.training.build import build
from contrapose.lab.training.method_settings import METHOD_SETTINGS, settings_for_loss
from contrapose.losses import CATALOGUE


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_every_method_has_a_framework(name: str) -> None:
    run = Run(data="digits", loss=name, **settings_for_loss(name))
    build(run, samples=20)


def test_names_are_those_of_the_catalogue() -> None:
    assert METHOD_SETTINGS.keys() <= CATALOGUE.keys()


def test_what_is_given_stays() -> None:
    assert settings_for_loss("dino", given=("prototypes", "head")) == {"framework": "dino", "frozen_epochs": 0}
    assert settings_for_loss("dino", framework="moco") == {}  # DINO's prototypes would be refused there
    assert settings_for_loss("dino", framework="dino", given=("framework",)).keys() == METHOD_SETTINGS[
        "dino"
    ].keys() - {"framework"}
    assert settings_for_loss("dystress(temperature=cosine(0.1, 0.2))") == {}


@pytest.mark.parametrize(
    ("loss", "framework", "message"),
    [
        (
            "byol",
            "simclr",
            "needs a predictor and a target without gradient, which simclr does not have; use --framework byol",
        ),
        (
            "simsiam",
            "simclr",
            "needs a predictor and a target without gradient, which simclr does not have; use --framework simsiam",
        ),
        (
            "byol",
            "nnclr",
            "needs a predictor and a target without gradient, which nnclr does not have; use --framework byol",
        ),
        (
            "nnclr(temperature=0.5)",
            "simclr",
            "nnclr pairs nearest neighbours, and simclr does not; use --framework nnclr",
        ),
        ("dino", "moco", "dino takes assignments, and moco offers pairs only; use --framework dino"),
        ("dino", "swav", "dino needs a teacher, which swav does not have; use --framework dino"),
        ("soft_nt_xent", "simclr", "soft_nt_xent needs soft targets in each step, which no data set has"),
        ("vicreg", "moco", "vicreg takes embeddings, and moco offers pairs only; use --framework simclr"),
    ],
)
def test_a_framework_that_does_not_fit(loss: str, framework: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Run(data="digits", loss=loss, framework=framework)


@pytest.mark.parametrize("framework", ["byol", "simsiam", "moco-v3"])
def test_losses_of_attraction_run_wherever_one_side_has_no_gradient(framework: str) -> None:
    assert Run(data="digits", loss="simsiam", framework=framework).framework == framework
