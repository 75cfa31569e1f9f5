"""The optimisers of runs: what they are built with, and how far a step goes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiers import first
from torch import nn

from contrapose.lab.modalities.text.presets import PRESETS
from contrapose.lab.training import PRESETS as ALL_PRESETS
from contrapose.lab.training import Run
from contrapose.lab.training.optimisers import gradient_norm, learning_rate, optimiser
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


@pytest.mark.thorough
@pytest.mark.parametrize("kind", first(1, ["adam", "adamw"]))
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


def test_the_cosine_schedule_ends_where_the_setting_says() -> None:
    run = Run(data="digits", lr=2.0, epochs=10, warmup=0.0, lr_end=0.001)
    rates = [learning_rate(run, step, 5) for step in range(51)]
    assert rates[0] == 2.0
    assert rates[-1] == pytest.approx(0.002)
    assert rates == sorted(rates, reverse=True)
    assert learning_rate(Run(data="digits", lr=2.0, epochs=10, warmup=0.0), 50, 5) == 0


def test_lars_has_the_trust_ratio_of_the_run() -> None:
    steps = []
    for trust in (1e-3, 0.02):
        layer = nn.Linear(3, 3)
        before = layer.weight.detach().clone()
        run = Run(data="digits", optimiser="lars", lr=1.0, lars_trust=trust)
        lars = optimiser(run, layer, nn.Identity())
        layer.weight.grad = torch.ones_like(layer.weight)
        lars.step()
        steps.append(float((layer.weight.detach() - before).norm() / before.norm()))
    assert steps == pytest.approx([1e-3, 0.02], rel=1e-2)


def test_presets_have_their_authors_ends_and_ratios() -> None:
    assert {ALL_PRESETS[name]["lr_end"] for name in ("dystress/imagenet", "byol/imagenet", "swav/imagenet")} == {1e-3}
    assert {ALL_PRESETS[name]["lars_trust"] for name in ("zero-cl/imagenet100", "dystress/table8-imagenet100")} == {
        0.02
    }
    assert ALL_PRESETS["vicreg/imagenet100"]["weight_decay"] == 1e-4


def test_gradients_are_clipped_together_or_each() -> None:
    layer = nn.Linear(2, 2)
    gradients = [torch.full((2, 2), 3.0), torch.full((2,), 0.5)]  # of norms 6 and 0.5 ** 0.5
    for each, expected in ((False, (3 * 6 / 36.5**0.5, 3 * (0.5 / 36.5) ** 0.5)), (True, (3.0, 0.5**0.5))):
        layer.weight.grad, layer.bias.grad = (gradient.clone() for gradient in gradients)
        norm = gradient_norm(list(layer.parameters()), 3.0, each=each)
        assert float(norm) == pytest.approx(36.5**0.5)
        assert (float(layer.weight.grad.norm()), float(layer.bias.grad.norm())) == pytest.approx(expected)


def test_only_the_presets_of_dino_clip_each_parameter() -> None:
    clipped = {name for name, settings in ALL_PRESETS.items() if settings.get("grad_clip_each")}
    assert clipped == {"dino/imagenet", "dino/imagenet100"}
    assert {ALL_PRESETS[name]["grad_clip"] for name in clipped} == {3.0}
    with pytest.raises(ValueError, match="grad_clip_each: nothing is clipped at --grad-clip 0"):
        Run(data="digits", grad_clip_each=True)
