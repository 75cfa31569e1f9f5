"""Few shots: the sample of each class, and the choice of learning rate and weight decay on it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from contrapose.lab.evaluation import FewShot, FineTune, n_shot
from contrapose.lab.modalities.images.encoders import encoder
from contrapose.lab.modalities.images.images import Images
from contrapose.lab.modalities.images.views import Views


def test_shots_are_balanced_and_decided_by_the_seed() -> None:
    labels = torch.tensor([0] * 30 + [1] * 7 + [2] * 12)[torch.randperm(49, generator=torch.Generator().manual_seed(0))]
    index = n_shot(labels, 5, seed=1)
    assert labels[index].tolist() == [0] * 5 + [1] * 5 + [2] * 5  # class by class
    assert len(index.unique()) == 15
    assert torch.equal(index, n_shot(labels, 5, seed=1))
    assert not torch.equal(index, n_shot(labels, 5, seed=2))
    assert set(n_shot(labels, 2, seed=1).tolist()) < set(index.tolist())


def test_a_class_with_too_few_images_is_named() -> None:
    labels = torch.tensor([0] * 5 + [1] * 4)
    with pytest.raises(ValueError, match="class 'tulip' has 4 training images, fewer than the 5 to draw"):
        n_shot(labels, 5, classes=("rose", "tulip"))
    with pytest.raises(ValueError, match="class 2 has 0 training images"):
        n_shot(torch.tensor([0, 1, 3]), 1)
    with pytest.raises(ValueError, match="shots: expected at least 1, got 0"):
        n_shot(labels, 0)


def test_images_with_several_classes_are_drawn_until_every_class_has_enough() -> None:
    labels = (torch.rand(60, 4, generator=torch.Generator().manual_seed(0)) < 0.3).long()
    index = n_shot(labels, 5, seed=0)
    assert (labels[index].sum(0) >= 5).all()
    assert len(index) <= 20
    assert torch.equal(index, n_shot(labels, 5, seed=0))
    with pytest.raises(ValueError, match="class 1 has 3 training images, fewer than the 5"):
        n_shot(torch.eye(2).long()[torch.tensor([0] * 9 + [1] * 3)], 5)


def test_the_obviously_better_learning_rate_is_chosen() -> None:
    """One learning rate cannot leave the start, one diverges, and the one between learns separable features."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(3).repeat_interleave(5)
    inputs = 4 * torch.eye(3)[labels] + 0.1 * torch.randn(15, 3, generator=generator)

    def make() -> nn.Module:
        layer = nn.Linear(3, 3)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        return layer

    few_shot = FewShot(training=FineTune(epochs=20, batch=16), lrs=(1e-9, 1e-1, 1e30), weight_decays=(1e-3,))
    assert few_shot.choose(make, inputs, labels) == (1e-1, 1e-3)
    decays = replace(few_shot, lrs=(1e-1,), weight_decays=(9.0, 1e-6))  # a decay of 9 holds the weights at zero
    assert decays.choose(make, inputs, labels) == (1e-1, 1e-6)


def stripes(count: int, seed: int) -> Images:
    """Images of horizontal, vertical and no stripes, with noise."""
    generator = torch.Generator().manual_seed(seed)
    bars = (torch.arange(32) // 4 % 2 * 150).expand(32, 32)
    patterns, labels = torch.stack([bars.T, bars, torch.full((32, 32), 75)]), torch.arange(count) % 3
    noise = torch.randint(0, 100, (count, 3, 32, 32), generator=generator)
    return Images("stripes", (patterns[labels][:, None] + noise).to(torch.uint8), labels, ("rows", "columns", "none"))


@pytest.mark.thorough
@pytest.mark.parametrize("fine_tune", [False, True])
def test_few_shots_classify_what_the_encoder_separates(fine_tune: bool) -> None:
    train, test, views = stripes(60, 0), stripes(30, 1), Views.named("digits")
    torch.manual_seed(0)
    body = encoder("tiny")
    before = {name: tensor.clone() for name, tensor in body.state_dict().items()}
    few_shot = FewShot(samples=2, training=FineTune(epochs=6, batch=32), lrs=(1e-5, 1e-2), weight_decays=(1e-4,))
    result = few_shot(body, train, test, views=views, fine_tune=fine_tune, metric="accuracy")
    assert len(result.scores) == len(result.choices) == 2
    assert result.mean == pytest.approx(sum(result.scores) / 2)
    assert result.mean > 55
    assert result == few_shot(body, train, test, views=views, fine_tune=fine_tune)
    assert all(torch.equal(tensor, before[name]) for name, tensor in body.state_dict().items())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("fine_tune", [False, True])
def test_few_shots_on_a_gpu(fine_tune: bool) -> None:
    few_shot = FewShot(samples=1, training=FineTune(epochs=6, batch=32), lrs=(1e-5, 1e-2), weight_decays=(1e-4,))
    result = few_shot(
        encoder("tiny"), stripes(60, 0), stripes(30, 1), views=Views.named("digits"), fine_tune=fine_tune, device="cuda"
    )
    assert result.mean > 55


def test_one_shot_leaves_nothing_to_choose_on() -> None:
    with pytest.raises(
        ValueError, match="shots: expected at least 2, one of them to choose the learning rate on, got 1"
    ):
        FewShot(shots=1)
    with pytest.raises(ValueError, match="samples, lrs, weight_decays: expected at least one of each"):
        FewShot(lrs=())
