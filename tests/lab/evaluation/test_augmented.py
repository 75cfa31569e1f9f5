"""Linear probes of augmented images: what the encoder sees, and that it matters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torchvision.utils import save_image

from contrapose.lab.evaluation import PROBES, Probe, probe_augmented
from contrapose.lab.modalities.images.images import Images
from contrapose.lab.modalities.images.stream import Files
from contrapose.lab.modalities.images.views import Recipe, Views
from contrapose.lab.training import Model, Run, prepare
from contrapose.lab.training.build import build

CPU, CLASSES, SIZE = torch.device("cpu"), 6, 16
VIEWS = Views((Recipe(SIZE),))


def bars(count: int, *, mirrored: bool = False) -> Images:
    """Images of a bright bar in the left half, or mirrored in the right; its height is the class."""
    pixels, labels = torch.zeros(count, 3, SIZE, SIZE, dtype=torch.uint8), torch.arange(count) % CLASSES
    for image, label in zip(pixels, labels.tolist(), strict=True):
        image[:, 2 * label : 2 * label + 2, : SIZE // 2] = 255
    return Images("bars", pixels.flip(3) if mirrored else pixels, labels)


def flat(inputs: Tensor) -> Tensor:
    return inputs.flatten(1)


def score(
    probe: Probe,
    train: Images | Files,
    *,
    encode: Callable[[Tensor], Tensor] = flat,
    views: Views = VIEWS,
    seed: int = 0,
    device: torch.device = CPU,
) -> dict[str, float]:
    """Train on augmented images; classify mirrored ones."""
    test, light = bars(60, mirrored=True), views.light(probe.augment)
    assert train.labels is not None
    assert test.labels is not None
    reader = train.reader(light, device, workers=0, timeout=0.0)
    features = flat(views.plain(test.pixels.to(device)))
    labels = train.labels.to(device), test.labels.to(device)
    return probe_augmented(probe, encode, reader, labels[0], features, labels[1], views=light, seed=seed)


def test_flips_are_learned_from() -> None:
    train, test = bars(120), bars(60, mirrored=True)
    plain = Probe(lr=1.0, epochs=5, batch=16)
    assert train.labels is not None
    assert test.labels is not None
    inputs = flat(VIEWS.plain(train.pixels)), flat(VIEWS.plain(test.pixels))
    # The right half is dark in all training images, so that nothing is learned about it.
    assert plain(inputs[0], train.labels, inputs[1], test.labels)["top1"] < 50
    assert score(Probe(lr=1.0, epochs=5, batch=16, augment="flips"), train)["top1"] == 100


def test_views_are_new_in_each_epoch_and_the_same_for_a_seed() -> None:
    def seen(seed: int) -> Tensor:
        inputs: list[Tensor] = []

        def encode(batch: Tensor) -> Tensor:
            inputs.append(batch)
            return flat(batch)

        scores.append(score(Probe(epochs=2, augment="crops"), bars(30), encode=encode, seed=seed))
        return torch.stack(inputs)

    scores: list[dict[str, float]] = []
    first, again, other = seen(1), seen(1), seen(2)
    assert first.shape == (2, 30, 3, SIZE, SIZE)  # one batch of the encoder for each epoch
    assert torch.equal(first, again)
    assert scores[0] == scores[1]
    assert not torch.equal(first, other)
    assert not torch.equal(first[0].sort(dim=0).values, first[1].sort(dim=0).values)


@dataclass(frozen=True)
class SmallBatches(Views):
    size: int = 20

    def light(self, augment: str = "crops", *, smallest: float | None = 0.2) -> Views:
        return SmallBatches(super().light(augment, smallest=smallest).recipes, self.size)

    def evaluation_batch(self, device: torch.device) -> int:
        return self.size


@pytest.mark.parametrize("batch", [8, 64])  # smaller and larger than the encoder's
def test_the_batch_of_the_encoder_does_not_matter(batch: int) -> None:
    probe, train = Probe("adam", lr=0.01, epochs=3, batch=batch, augment="crops", best=True), bars(150)
    assert score(probe, train, views=SmallBatches(VIEWS.recipes)) == score(probe, train)


def test_streamed_images_give_what_images_in_memory_give(tmp_path: Path) -> None:
    images = bars(60)
    assert images.labels is not None
    for number, (pixels, label) in enumerate(zip(images.pixels, images.labels.tolist(), strict=True)):
        (tmp_path / str(label)).mkdir(exist_ok=True)
        save_image(pixels / 255, tmp_path / str(label) / f"{number:03}.png")
    files, probe = Files.of(tmp_path), Probe(lr=1.0, epochs=2, batch=16, augment="crops")
    assert files.reader(VIEWS, CPU, workers=0, timeout=0.0).resident is None
    assert score(probe, files) == score(probe, files.in_memory(VIEWS))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_what_a_cpu_gives() -> None:
    probe, train = Probe("adam", lr=0.01, epochs=5, batch=16, augment="crops", best=True), bars(150)
    on_cpu, on_gpu = (score(probe, train, device=torch.device(name)) for name in ("cpu", "cuda"))
    assert on_gpu == pytest.approx(on_cpu, abs=2)  # one of 60 images may be at a boundary


def test_features_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match=r"train: features of some images with augmentation \(crops\) are not finite"):
        score(Probe(epochs=1, augment="crops"), bars(30), encode=lambda inputs: flat(inputs) / 0)
    features, labels = torch.zeros(4, 8), torch.zeros(4, dtype=torch.long)
    reader = bars(4).reader(VIEWS, CPU, workers=0, timeout=0.0)
    with pytest.raises(ValueError, match=r"train_labels: expected one integer per image, shape \(4,\), got \(4, 1\)"):
        probe_augmented(Probe(augment="crops"), flat, reader, labels[:, None], features, labels, views=VIEWS)


@pytest.mark.parametrize("name", ["cacr", "cacr-crops"])
@pytest.mark.parametrize(("rows", "sees"), [("train", "the images trained on"), ("all", "all labelled images")])
def test_a_probe_of_the_training_set_sees_nothing_else(name: str, rows: str, sees: str) -> None:
    run = Run(data="digits", limit=300, imbalance="exponential:100", probe=rows, views="digits", encoder="tiny")
    split = prepare(run, None)
    network = build(run, len(split.train))
    model = Model(run, network.encoder, network.projector, CPU)
    counts = []
    model.encoder.register_forward_hook(lambda module, inputs, output: counts.append(len(output)))
    scores = model.linear_probe(split, PROBES[name].shortened(1))
    assert split.test is not None
    assert sum(counts) - len(split.test) == (len(split.train) if rows == "train" else 300), sees
    assert len(split.train) < 300
    assert 0 <= scores["top1"] <= scores["top5"] <= 100
    assert scores == model.linear_probe(split, PROBES[name].shortened(1))


def test_light_views() -> None:
    images, index = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8), torch.arange(8)
    views = Views.named("insdis")
    flips, colours = (views.light(augment).draw(images, index, seed=0, epoch=0) for augment in ("flips", "colours"))
    plain = views.plain(images)
    for drawn, image in zip(flips, plain, strict=True):
        assert min((drawn - image).abs().max(), (drawn - image.flip(2)).abs().max()) < 1e-4
    assert not torch.allclose(flips, plain, atol=1e-4)
    # Jitter and grayscale keep every edge in its place, and change its colours.
    assert (colours - plain).abs().amax((1, 2, 3)).min() > 0.1
    recipe = views.light("crops", smallest=0.08).recipes[0]
    assert (recipe.scale, recipe.jitter, recipe.gray, recipe.flip) == ((0.08, 1.0), None, 0.0, 0.5)
    # The authors of CACR crop as in training: other shares on CIFAR than on STL-10.
    crops = PROBES["cacr-crops"].smallest_crop
    assert Views.named("align-uniform").light("crops", smallest=crops).recipes[0].scale == (0.2, 1.0)
    assert Views.named("align-uniform-stl").light("crops", smallest=crops).recipes[0].scale == (0.08, 1.0)
    assert Views.named("insdis-svhn").light("flips").recipes[0].flip == 0  # a mirrored digit is no digit
    with pytest.raises(ValueError, match="augment: expected one of"):
        views.light("blur")


def test_jittered_crops_have_the_authors_colours() -> None:
    # Wang & Liu's probe on ImageNet-100 (--aug CJ): fixed values, whatever the run's own recipe has.
    recipe = Views.named("moco-v2").light("jittered", smallest=0.08).recipes[0]
    assert (recipe.scale, recipe.flip, recipe.gray) == ((0.08, 1.0), 0.5, 0.2)
    assert (recipe.jitter, recipe.jitter_chance, recipe.blur) == ((0.4, 0.4, 0.4, 0.4), 1.0, 0.0)
    assert Views.named("insdis-svhn").light("jittered").recipes[0].flip == 0
    assert "random crops of 0.08 to 1 of the area, flips, colour jitter" in PROBES["wang-liu-jittered"].describe()
