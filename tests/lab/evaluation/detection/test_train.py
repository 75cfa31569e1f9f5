"""A detector around an encoder learns to find drawn shapes, and its training is a function of its seed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from contrapose.lab.evaluation.detection import (
    PROTOCOLS,
    Detection,
    DetectionData,
    build_detector,
    draw_shapes,
    read_detection_data,
)
from contrapose.lab.evaluation.detection.train import _batches, _mirror
from contrapose.lab.modalities.images.encoders import encoder
from contrapose.lab.modalities.images.views import Views
from contrapose.lab.networks.norms import split_norms

VIEWS = Views.named("simclr-cifar")
TINY = Detection(iterations=2, batch=2, lr=0.2, sizes=(48,), regions=8, masks=True, precise_batches=2)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DetectionData:
    folder = draw_shapes(tmp_path_factory.mktemp("coco"), layout="coco", train=16, test=8, size=48)
    return read_detection_data(folder, masks=True)


@pytest.mark.thorough
def test_a_detector_finds_shapes(data: DetectionData) -> None:
    torch.manual_seed(0)
    network = encoder("tiny")
    before = replace(TINY, iterations=1, lr=1e-9, batch=4)(network, data, views=VIEWS)
    learning = replace(TINY, iterations=40, lr=0.3, batch=4, precise_batches=4)
    after = learning(network, data, views=VIEWS)
    assert set(after) == {"AP", "AP50", "AP75", "mask_AP", "mask_AP50", "mask_AP75"}
    assert after["AP50"] > before["AP50"] + 6
    assert after["mask_AP50"] > before["mask_AP50"] + 6


@pytest.mark.thorough
def test_the_encoder_and_the_callers_random_numbers_stay(data: DetectionData) -> None:
    network = encoder("tiny")
    weights, state = {n: t.clone() for n, t in network.state_dict().items()}, torch.get_rng_state()
    faster = replace(TINY, masks=False, lr=1e-3, regions=16, precise_batches=1)
    first, again, other = (faster(network, data, views=VIEWS, seed=seed) for seed in (0, 0, 1))
    assert 0 < first["AP50"] == again["AP50"] != other["AP50"]
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(weights[name], tensor) for name, tensor in network.state_dict().items())


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["resnet18", "resnet18-cifar", "small", "tiny"])
def test_the_stages_of_an_encoder_make_the_detector(name: str) -> None:
    network = encoder(name)
    detector = build_detector(network, 2, sizes=(64,), regions=4).eval()
    images = torch.rand(2, 3, 64, 64)
    features = detector.roi_heads.box_head[0][0](detector.backbone(images))  # type: ignore[operator, union-attr, index]
    torch.testing.assert_close(features.mean((2, 3)), network.eval()(images))
    with torch.no_grad():
        assert {"boxes", "labels", "scores"} == set(detector(list(images))[0])


def test_split_norms_are_replaced() -> None:
    """Three regions cannot be split into the eight parts of a MoCo encoder's batch norms."""
    network = split_norms(encoder("tiny"), 8)
    network.network[1].running_mean.fill_(0.25)  # type: ignore[index]
    detector = build_detector(network, 2, sizes=(64,), regions=3).train()
    target = {"boxes": torch.tensor([[4.0, 4, 30, 30]]), "labels": torch.tensor([1])}
    losses = detector([torch.rand(3, 64, 64)], [target])
    assert all(loss.isfinite() for loss in losses.values())
    norms = [module for module in build_detector(network, 2).modules() if isinstance(module, torch.nn.BatchNorm2d)]
    assert len(norms) == 1 + 3 * 2 + 2 + 1  # stem, blocks, shortcuts, and the one behind the last stage
    assert norms[0].running_mean is not None
    assert norms[0].running_mean.eq(0.25).all()


@pytest.mark.parametrize("name", ["alexnet", "vit-b16"])
def test_an_encoder_without_stages_is_refused(name: str) -> None:
    with torch.device("meta"):
        network = encoder(name)
    with pytest.raises(ValueError, match="run: detection needs an encoder with stages"):
        build_detector(network, 2)


def test_every_image_comes_once_in_an_epoch(data: DetectionData) -> None:
    def boxes(batches: int, seed: int) -> list[list[float]]:
        """The widths of the boxes of each image, which mirroring does not change."""
        samples = [sample for batch in _batches(data.train, batches, 4, seed=seed) for sample in batch]
        return [(target["boxes"][:, 2] - target["boxes"][:, 0]).tolist() for _, target in samples]

    assert len(boxes(5, seed=0)) == 20
    assert sorted(boxes(4, seed=0)) == sorted(boxes(4, seed=1))
    assert boxes(4, seed=0) != boxes(4, seed=1)
    assert boxes(5, seed=0)[:16] == boxes(4, seed=0)


def test_a_mirrored_image_keeps_its_objects(data: DetectionData) -> None:
    image, target = data.train[0]
    mirrored, flipped = _mirror(image, target)
    for box, twin in zip(target["boxes"].long().tolist(), flipped["boxes"].long().tolist(), strict=True):
        left, top, right, bottom = box
        inside = mirrored[:, top:bottom, twin[0] : twin[2]].flip(-1)
        assert torch.equal(inside, image[:, top:bottom, left:right])
    assert torch.equal(flipped["masks"].flip(-1), target["masks"])


def test_the_schedules_of_the_paper() -> None:
    """CACR, Appendix C.2, and MoCo's configuration of detectron2."""
    voc, coco = PROTOCOLS["voc"], PROTOCOLS["coco"]
    assert (voc.iterations, voc.batch, voc.sizes[0], voc.sizes[-1], voc.masks) == (24_000, 16, 480, 800, False)
    rates = [voc._rate(step) for step in (0, 100, 17_999, 18_000, 21_999, 22_000)]
    assert rates == pytest.approx([0.02e-3, 0.02, 0.02, 0.002, 0.002, 0.0002])
    assert (coco.iterations, coco.batch, coco.sizes[0], coco.sizes[-1], coco.masks) == (90_000, 16, 640, 800, True)
    assert [coco._rate(step) for step in (59_999, 60_000, 80_000)] == pytest.approx([0.02, 0.002, 0.0002])
    assert replace(voc, iterations=50)._rate(10) == 0.02  # the warm-up is shortened too
    assert voc.at_size(400).sizes == tuple(range(240, 401, 16))


def test_bad_settings(tmp_path: Path, data: DetectionData) -> None:
    with pytest.raises(ValueError, match="iterations: expected at least 1, got 0"):
        Detection(iterations=0)
    with pytest.raises(ValueError, match=r"lr: expected a number above 0, got -1"):
        Detection(lr=-1.0)
    with pytest.raises(ValueError, match="size: expected at least 32 pixels, got 8"):
        Detection().at_size(8)
    with pytest.raises(ValueError, match=r"lr: the loss is .* use a smaller --lr"):
        replace(TINY, iterations=8, lr=1e6)(encoder("tiny"), data, views=VIEWS)
