"""Settings of a loss are checked before any data is read."""

from __future__ import annotations

import re

import pytest

from contrapose.lab.training import Run
from contrapose.losses import CATALOGUE
from contrapose.losses.parse import parse
from contrapose.losses.trial import try_loss


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_method_is_accepted(name: str) -> None:
    try_loss(parse(name))


@pytest.mark.parametrize(
    "text",
    [
        "nt_xent(negatives=hardest(64))",
        "nt_xent(negatives=(stored_rows(), hardest(4095)))",
        "nt_xent(temperature=schedule(0.1, 1.0, 50))",
        "siglip(temperature=learned(0.07), bias=learned_number(-5))",
        "isogclr(rho=0.3, high=0.7)",
        "sogclr(gamma=0.5, towers=2)",
    ],
)
def test_choices_that_need_more_images_are_accepted(text: str) -> None:
    try_loss(parse(text))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("nt_xent(temperature=0)", "temperature: expected a number above 0, got 0.0"),
        ("nt_xent(temperature=-0.1)", "temperature: expected a number above 0, got -0.1"),
        ("nt_xent(temperature='low')", "temperature: expected a finite number, got 'low'"),
        ("nt_xent(temperature=1e999)", "temperature: expected a finite number, got inf"),
        (f"nt_xent(temperature={'9' * 400})", "expected numbers of at most 64 bits, got one of 400 digits"),
        ("balanced(alpha=-4)", "alpha: expected a number above 0, got -4.0"),
        ("nt_xent(negatives=3)", "negatives: expected None, other_views()"),
    ],
)
def test_a_run_refuses_settings_out_of_range(loss: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Run(loss=loss)


@pytest.mark.parametrize("loss", ["swav", "dino(teacher_temperature=warmup(0.04, 0.07))"])
def test_a_loss_of_assignments_needs_a_framework_with_prototypes(loss: str) -> None:
    try_loss(parse(loss))
    with pytest.raises(ValueError, match=re.escape(f"loss: {loss} takes assignments, and simclr offers")):
        Run(loss=loss, framework="simclr")
