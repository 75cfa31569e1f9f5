"""Presets of sentences have SimCSE's settings, and the losses of DySTreSS's Table 12."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize
from torch.testing import assert_close

from contrapose.lab.modalities.text.presets import PRESETS as SENTENCES
from contrapose.lab.training import preset
from contrapose.losses.parse import parse
from contrapose.pairs import cross


@pytest.mark.parametrize("name", sorted(SENTENCES))
def test_settings_of_simcse(name: str) -> None:
    run = preset(name)
    assert (run.modality, run.framework, run.head, run.views, run.size) == ("text", "simcse", "simcse", "dropout", 32)
    assert (run.optimiser, run.lr, run.schedule, run.warmup, run.weight_decay) == ("adamw", 3e-5, "linear", 0.0, 0.0)
    # One pass over a million sentences, with an evaluation every 125 steps.
    assert run.epochs == run.epoch_slices
    assert 1_000_000 // (run.batch * run.epoch_slices) == 125
    assert (run.extra_metrics, run.keep_best) == (("sts:sts.tsv@1",), "stsb_dev")


def test_the_table_has_nine_rows() -> None:
    losses = {preset(name).loss for name in SENTENCES}
    assert len(losses) == len(SENTENCES) == 9


def dystress(similarity: Tensor, low: float, high: float, shift: float, k: float) -> Tensor:
    """Return Algorithm 2's temperature with a shift to the left, written from the paper."""
    swing = low + (high - low) / 2 * (1 + torch.cos(math.pi / k * (shift + similarity)))
    return torch.where(similarity <= -shift, swing, high)


def test_losses_are_cross_entropies_of_the_scaled_similarities() -> None:
    torch.manual_seed(0)
    first = torch.randn(8, 5, dtype=torch.float64)
    second = first + torch.randn(8, 5, dtype=torch.float64)
    similarity = normalize(first) @ normalize(second).T
    vanilla = 0.03 + 0.02 / 2 * (1 + torch.cos(math.pi * (1 + similarity)))
    temperatures = {
        "simcse/wiki1m": torch.tensor(0.05),
        "dystress/wiki1m-0.03-0.05": vanilla,
        "dystress/wiki1m-0.03-0.05-s-0.2": dystress(similarity, 0.03, 0.05, -0.2, 0.6),
        "dystress/wiki1m-0.05-0.07-s-0.4": dystress(similarity, 0.05, 0.07, -0.4, 0.7),
        "dystress/wiki1m-0.03-0.05-s-0.6": dystress(similarity, 0.03, 0.05, -0.6, 0.8),
    }
    for name, temperature in temperatures.items():
        run = preset(name)
        loss = parse(run.loss, run.loss_data)(cross(first, second))
        assert_close(loss, cross_entropy(similarity / temperature, torch.arange(8)), msg=name)


def test_macl_follows_the_alignment_of_the_batch() -> None:
    torch.manual_seed(0)
    first = torch.randn(8, 5, dtype=torch.float64)
    second = first + torch.randn(8, 5, dtype=torch.float64)
    similarity = normalize(first) @ normalize(second).T
    temperature = 0.05 * (1 + 2 * (similarity.diagonal().mean() - 0.8))
    share = (similarity / temperature).softmax(1).diagonal()
    run = preset("macl/wiki1m")
    loss = parse(run.loss, run.loss_data)(cross(first, second))
    assert_close(loss, (-share.log() / (1 - share)).mean())
