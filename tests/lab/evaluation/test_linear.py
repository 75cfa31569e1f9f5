from __future__ import annotations

import pytest
import torch

from contrapose.lab.evaluation import PROBES, FineTune, Probe, few_shot
from contrapose.lab.evaluation.linear import _LinearTrainer, accuracy
from contrapose.lab.modalities.images.encoders import encoder
from contrapose.lab.modalities.images.images import Images
from contrapose.lab.modalities.images.views import Views


def gaussian_blobs(n: int, classes: int = 6, spread: float = 0.3, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.nn.functional.normalize(torch.randn(classes, 16, generator=torch.Generator().manual_seed(9)))
    labels = torch.arange(n) % classes
    return centres[labels] + spread * torch.randn(n, 16, generator=generator), labels


@pytest.mark.parametrize("name", sorted(name for name, probe in PROBES.items() if not probe.augment))
def test_every_probe_classifies_separable_features(name: str) -> None:
    scores = PROBES[name](*gaussian_blobs(600), *gaussian_blobs(120, seed=1))
    # Ninety steps of LARS are too few for this small set.
    assert scores["top1"] > (60 if name == "balanced-imagenet" else 85)
    assert scores["top5"] >= scores["top1"]
    assert "best_top1" not in scores  # only with best=True


def test_no_top_five_of_five_classes() -> None:
    for classes in (5, 6):
        inputs, labels = torch.eye(classes), torch.arange(classes)
        assert ("top5" in accuracy(lambda x: x, inputs, labels)) is (classes == 6)


def test_the_same_seed_gives_the_same_probe() -> None:
    probe = Probe(lr=1.0, epochs=3, best=True)
    a, b = (probe(*gaussian_blobs(200), *gaussian_blobs(60, seed=1)) for _ in range(2))
    assert a == b
    assert a["best_top1"] >= a["top1"]
    assert a["best_top5"] >= a["top5"]


def test_learning_rates() -> None:
    step_schedule = Probe(lr=30.0, milestones=(40, 60, 80), gamma=0.2)
    assert [step_schedule._learning_rate(e) for e in (0, 39, 40, 60, 99)] == pytest.approx([30, 30, 6, 1.2, 0.24])
    assert Probe(lr=2.0, epochs=10)._learning_rate(5) == pytest.approx(1.0)
    assert step_schedule.shortened(5).milestones == (2, 3, 4)


def test_few_shot_is_class_balanced() -> None:
    features, labels = gaussian_blobs(600)
    kept = (labels != 3) | (torch.arange(600) < 60)  # a rare class
    scores = few_shot(features[kept], labels[kept], *gaussian_blobs(120, seed=1))
    assert set(scores) == {"few_shot", "long_tail"}
    assert min(scores.values()) > 80


def test_invalid_settings_are_rejected() -> None:
    with pytest.raises(ValueError, match="optimiser: expected"):
        Probe("adamw")
    with pytest.raises(ValueError, match="lr: expected"):
        Probe(lr=0.0)
    with pytest.raises(ValueError, match="epochs, batch"):
        Probe(epochs=0)
    with pytest.raises(
        ValueError, match="augment: expected one of crops, flips, colours, jittered, got 'crop'; did you mean"
    ):
        Probe(augment="crop")
    with pytest.raises(ValueError, match="smallest_crop: expected a share"):
        Probe(augment="crops", smallest_crop=0.0)
    with pytest.raises(ValueError, match="augment: 'crops' needs the encoder and its training samples"):
        PROBES["cacr-crops"](*gaussian_blobs(20), *gaussian_blobs(20))


def coloured_images(count: int, seed: int) -> Images:
    """Images of six classes, each of one colour with noise."""
    generator = torch.Generator().manual_seed(seed)
    colours = torch.randint(0, 200, (6, 3, 1, 1), generator=torch.Generator().manual_seed(5))
    labels = torch.arange(count) % 6
    noise = torch.randint(0, 56, (count, 3, 32, 32), generator=generator)
    return Images("coloured", (colours[labels] + noise).to(torch.uint8), labels)


@pytest.mark.thorough
def test_fine_tuning_learns_and_does_not_change_the_encoder() -> None:
    train, test = coloured_images(300, 0), coloured_images(100, 1)
    body = encoder("tiny")
    before = {name: tensor.clone() for name, tensor in body.state_dict().items()}
    views = Views.named("digits")
    scores = FineTune(epochs=4, batch=50, lr=0.05)(body, train, test, views=views)
    assert scores["top1"] > 60  # six classes
    assert scores == FineTune(epochs=4, batch=50, lr=0.05)(body, train, test, views=views)
    assert all(torch.equal(tensor, before[name]) for name, tensor in body.state_dict().items())
    with pytest.raises(ValueError, match="epochs, batch"):
        FineTune(epochs=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("optimiser", ["sgd", "adam", "lars"])
def test_graphed_steps_equal_eager_steps(optimiser: str) -> None:
    weights = []
    for device in ("cpu", "cuda"):
        features, labels = (x.to(device) for x in gaussian_blobs(700))
        layer = torch.nn.Linear(16, 6, device=device)
        with torch.no_grad():
            layer.weight.copy_(torch.linspace(-0.1, 0.1, 96).view(6, 16))
            layer.bias.zero_()
        trainer = _LinearTrainer(
            layer, Probe(optimiser, lr=0.05)._optimiser(layer), features=features, labels=labels, batch=64
        )
        for epoch in range(3):
            trainer.take_steps(torch.arange(700, device=device).roll(epoch * 100), 0.05 / (1 + epoch))
        assert trainer.graphed_step is None or trainer.graphed_step.graph is not None
        weights.append(layer.weight.detach().cpu())
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-3, atol=1e-4)
