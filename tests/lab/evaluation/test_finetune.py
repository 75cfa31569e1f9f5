"""Fine-tuning: weights of classes, schedules, recipes, and data in memory and on disk."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from contrapose.lab.evaluation import FINE_TUNING, FineTune
from contrapose.lab.modalities.images.encoders import encoder
from contrapose.lab.modalities.images.images import Images
from contrapose.lab.modalities.images.stream import Files
from contrapose.lab.modalities.images.views import Views


def fitted_bias(training: FineTune, labels: list[int]) -> Tensor:
    """Train a classifier of inputs that are all zero, so that the bias alone decides; return its optimum."""
    targets = torch.tensor(labels)
    network = nn.Linear(1, training.outputs(targets))
    everything = torch.arange(len(labels))

    def batches(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        yield everything, torch.zeros(len(labels), 1)

    training.fit(network, targets, batches)
    return network.bias.detach()


def test_pos_weight_moves_the_optimum_as_computed_by_hand() -> None:
    """With w, p positives and n negatives the loss w·p·log(1+e^-z) + n·log(1+e^z) is smallest at z = log(w·p / n)."""
    labels = [1] * 2 + [0] * 6
    for weight in (1.0, 0.7097, 4.24):
        (bias,) = fitted_bias(FineTune(epochs=300, batch=8, lr=0.5, pos_weight=weight), labels).tolist()
        assert bias == pytest.approx(math.log(weight * 2 / 6), abs=1e-3)


def test_class_weights_move_the_optimum_as_computed_by_hand() -> None:
    """The probabilities at the optimum are proportional to weight × number of samples."""
    labels, weights = [0] * 4 + [1] * 2 + [2] * 2, (1.264, 1.667, 2.114)
    products = torch.tensor([1.264 * 4, 1.667 * 2, 2.114 * 2])
    bias = fitted_bias(FineTune(epochs=400, batch=8, lr=0.5, class_weights=weights), labels)
    assert torch.allclose(bias.softmax(0), products / products.sum(), atol=1e-3)
    equal = fitted_bias(FineTune(epochs=400, batch=8, lr=0.5), labels)
    assert torch.allclose(equal.softmax(0), torch.tensor([0.5, 0.25, 0.25]), atol=1e-3)


def test_images_with_several_classes_have_a_logit_for_each() -> None:
    labels = torch.tensor([[1, 1], [1, 0], [1, 0], [0, 0]])
    network, training = nn.Linear(1, 2), FineTune(epochs=300, batch=4, lr=0.5)
    assert training.outputs(labels) == 2
    training.fit(network, labels, lambda epoch: [(torch.arange(4), torch.zeros(4, 1))])
    assert torch.allclose(network.bias.sigmoid(), torch.tensor([0.75, 0.25]), atol=1e-3)


def learning_rates(training: FineTune) -> list[float]:
    """Return the learning rate of the only step of each epoch."""
    rates: list[float] = []
    hook = register_optimizer_step_pre_hook(
        lambda optimiser, args, kwargs: rates.append(optimiser.param_groups[0]["lr"])
    )
    training.fit(nn.Linear(1, 2), torch.tensor([0, 1]), lambda epoch: [(torch.arange(2), torch.zeros(2, 1))])
    hook.remove()
    return rates


def test_schedules() -> None:
    rates = learning_rates(FINE_TUNING["dystress-multiclass"])
    assert len(rates) == 50
    assert [rates[epoch] for epoch in (0, 29)] == [0.1, 0.1]
    assert [rates[epoch] for epoch in (30, 39, 40, 49)] == pytest.approx([0.01, 0.01, 0.001, 0.001])
    assert learning_rates(FineTune(epochs=4, batch=256)) == pytest.approx(
        [0.05 * 0.5 * (1 + math.cos(math.pi * epoch / 4)) for epoch in range(4)]
    )
    warmed = learning_rates(FineTune(epochs=6, lr=1.0, warmup=3))
    assert warmed[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])


def test_recipes_have_the_printed_settings() -> None:
    binary, vit = FINE_TUNING["dystress-binary"], FINE_TUNING["vit"]
    assert (binary.epochs, binary.batch, binary.lr, binary.milestones, binary.gamma) == (50, 128, 1.0, (30, 40), 0.1)
    assert vit.lr == pytest.approx(5e-4 * vit.batch / 512)
    assert (vit.epochs, vit.optimiser) == (150, "adamw")


def striped_files(folder: Path, count: int) -> Files:
    """Write images of 32 × 32 pixels, losslessly: horizontal stripes are class 0, vertical ones class 1."""
    paths = []
    for i in range(count):
        generator = torch.Generator().manual_seed(i)
        stripes = (torch.arange(32) // 4 % 2 * 150).expand(32, 32)
        pixels = (stripes.T if i % 2 == 0 else stripes)[..., None] + torch.randint(
            0, 100, (32, 32, 3), generator=generator
        )
        paths.append(folder / f"{i:03}.png")
        Image.fromarray(pixels.to(torch.uint8).numpy()).save(paths[-1])
    return Files("stripes", tuple(paths), torch.arange(count) % 2, ("horizontal", "vertical"))


def test_streamed_equals_in_memory(tmp_path: Path) -> None:
    """Images of the size of the views are the same squares on disk and in memory."""
    views, files = Views.named("digits"), striped_files(tmp_path, 24)
    training = FineTune(epochs=2, batch=8, lr=0.05)
    body = encoder("tiny")
    results = [
        training(body, source, source, views=views, metrics=("accuracy",)) for source in (files, files.in_memory(views))
    ]
    assert results[0] == results[1]
    assert results[0]["accuracy"] == results[0]["top1"]


def test_binary_training_learns(tmp_path: Path) -> None:
    files = striped_files(tmp_path, 40).in_memory(Views.named("digits"))
    scores = FineTune(epochs=8, batch=8, lr=0.05, pos_weight=2.45)(
        encoder("tiny"), files, files, views=Views.named("digits"), metrics=("accuracy",)
    )
    assert scores["accuracy"] > 80
    assert scores.keys() == {"top1", "accuracy"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_fine_tuning_on_a_gpu_with_mixed_images(tmp_path: Path) -> None:
    files, views = striped_files(tmp_path, 40), Views.named("digits")
    for training in (FineTune(epochs=8, batch=8, pos_weight=2.45), replace(FINE_TUNING["vit"], epochs=4, batch=8)):
        scores = training(encoder("tiny"), files, files, views=views, device="cuda", metrics=("roc_auc",))
        assert scores["roc_auc"] > 60


def test_mixup_and_cutmix_depend_on_the_seed_alone() -> None:
    noise = torch.randint(0, 256, (16, 3, 32, 32), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    source, views = Images("noise", noise, torch.arange(16) % 4), Views.named("digits")
    training, body = replace(FINE_TUNING["vit"], epochs=1, batch=8, warmup=0), encoder("tiny")
    before = torch.random.get_rng_state()
    first = training(body, source, source, views=views, seed=1)
    assert torch.equal(before, torch.random.get_rng_state())
    torch.rand(7)  # what the caller draws makes no difference
    assert training(body, source, source, views=views, seed=1) == first
    mixed, targets = training._mix(torch.rand(8, 3, 32, 32), torch.arange(8) % 4, classes=4, keys=(0, 0, 0))
    assert mixed.shape == (8, 3, 32, 32)
    assert targets.shape == (8, 4)
    assert torch.allclose(targets.sum(1), torch.ones(8))
    assert (targets.max(1).values < 1).any()


def test_wrong_settings_are_refused() -> None:
    labels = torch.tensor([0, 1, 2])
    with pytest.raises(ValueError, match="pos_weight: expected two classes, 0 and 1, got 3"):
        FineTune(pos_weight=2.0).outputs(labels)
    with pytest.raises(ValueError, match="class_weights: expected 3 numbers, one per class, got 2"):
        FineTune(class_weights=(1.0, 2.0)).outputs(labels)
    with pytest.raises(ValueError, match="pos_weight: a binary cross-entropy has no class_weights"):
        FineTune(pos_weight=2.0, mixup=0.8)
    with pytest.raises(ValueError, match="optimiser: expected one of 'sgd', 'adamw', got 'adam'"):
        FineTune(optimiser="adam")
    with pytest.raises(ValueError, match="class_weights, pos_weight: expected a number above 0, got -1"):
        FineTune(class_weights=(1.0, -1.0))


def test_images_with_several_classes_need_a_metric(tmp_path: Path) -> None:
    """Refused before anything is read: without a metric there would be no score."""
    source = Files("voc", (tmp_path / "missing.jpg",) * 2, torch.tensor([[1, 0], [1, 1]]), ("cat", "dog"))
    with pytest.raises(ValueError, match="metrics: images with several classes have no accuracy; use map_11"):
        FineTune()(encoder("tiny"), source, source, views=Views.named("digits"))
