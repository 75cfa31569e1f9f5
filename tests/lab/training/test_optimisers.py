"""The optimisers of runs: what they are built with, and how far a step goes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from contrapose.lab.modalities.text.presets import PRESETS
from contrapose.lab.training import Run
from contrapose.lab.training.optimisers import optimiser
from contrapose.lab.training.options import make_run


def _longest_step(run: Run) -> float:
    """Return the longest step, in learning rates, of weights with 3,000 small gradients, one large one and small ones again."""
    layer = nn.Linear(2, 2)
    steps, adam = [], optimiser(run, layer, nn.Identity())
    for number in range(3040):
        layer.weight.grad = torch.full_like(layer.weight, 0.3 if number == 3000 else 0.01 * (-1) ** number)
        before = layer.weight.detach().clone()
        adam.step()
        steps.append(float((layer.weight.detach() - before).abs().max()) / run.lr)
    return max(steps[3000:])


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_a_large_gradient_after_many_small_ones(kind: str) -> None:
    settings: dict[str, Any] = {"data": "digits", "optimiser": kind, "lr": 1e-3, "weight_decay": 0.0}
    assert _longest_step(Run(**settings)) == pytest.approx(0.1 / 0.001**0.5, rel=0.5)
    assert _longest_step(Run(**settings, adam_beta2=0.98)) < 0.8


def test_texts_use_a_short_memory_and_simcse_its_own() -> None:
    # With 0.999, 20,000 sentences under dropout views collapsed after 22 epochs on a GPU.
    assert make_run({"data": "pydoc"}).adam_beta2 == 0.98
    assert make_run({"data": "pydoc", "adam_beta2": 0.999}).adam_beta2 == 0.999
    assert {Run(**settings).adam_beta2 for settings in PRESETS.values()} == {0.999}
    assert make_run({"data": "digits"}).adam_beta2 == 0.999


def test_an_average_that_never_forgets_is_refused() -> None:
    with pytest.raises(ValueError, match=r"adam_beta2: expected a number of at most 0\.999999, got 1\.0"):
        Run(data="digits", adam_beta2=1.0)
