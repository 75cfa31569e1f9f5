from __future__ import annotations

import pytest
import torch

from contrapose.lab.modalities.images import digits as drawn_digits
from contrapose.lab.modalities.images.digits import digits
from contrapose.lab.modalities.images.images import Images


def test_the_same_images_for_the_same_seed() -> None:
    a, b = digits(50, seed=1), digits(80, seed=1)
    assert torch.equal(a.pixels, b.pixels[:50])  # a larger data set begins with the same images
    assert a.labels is not None
    assert b.labels is not None
    assert torch.equal(a.labels, b.labels[:50])
    assert not torch.equal(a.pixels, digits(50, seed=2).pixels)
    assert not torch.equal(a.pixels, digits(50, seed=1, train=False).pixels)
    assert a.pixels.shape == (50, 3, 32, 32)


def test_small_digits_are_near_the_centre_and_each_test_image_shows_another_digit() -> None:
    train, test = digits(200, name="digits16"), digits(797, train=False, name="digits16")
    assert train.pixels.shape == (200, 3, 16, 16)
    scans, labels = drawn_digits._scans()
    assert test.labels is not None
    assert torch.equal(test.labels, labels[-797:])  # each of the held-out digits once, and none of them in training
    free, centred = drawn_digits.DRAWINGS["digits"], drawn_digits.DRAWINGS["digits16"]
    u = torch.rand(50, 4)
    spread = {}
    for drawing in (free, centred):
        ink = drawn_digits._transform(scans[:50], u, drawing)[:, 0]
        axis = torch.linspace(-1, 1, drawing.side)
        spread[drawing] = float(((ink.sum(1) * axis).sum(1) / ink.sum((1, 2))).std())
    assert spread[centred] < 0.4 * spread[free]


def test_every_class_has_images() -> None:
    counts = digits(3000).counts()
    assert len(counts) == 10
    assert min(counts) > 200


def test_raw_pixels_do_not_separate_the_classes() -> None:
    """The accuracy of 20 nearest neighbours on pixels is below one half, by Euclidean and by cosine distance."""
    train, test = digits(5000), digits(1000, train=False)
    assert train.labels is not None
    assert test.labels is not None
    x, y = (images.pixels.flatten(1) / 255 for images in (train, test))
    for neighbours in (
        torch.cdist(y, x).topk(20, largest=False).indices,
        (torch.nn.functional.normalize(y - x.mean(0)) @ torch.nn.functional.normalize(x - x.mean(0)).T)
        .topk(20)
        .indices,
    ):
        predicted = torch.mode(train.labels[neighbours], 1).values
        assert float((predicted == test.labels).float().mean()) < 0.5


def test_invalid_images_raise_errors() -> None:
    with pytest.raises(ValueError, match=r"mine: expected uint8 images of shape \(N, 3, H, W\), got torch.float32"):
        Images("mine", torch.zeros(2, 3, 4, 4), None)
    with pytest.raises(ValueError, match="mine: expected one label per image"):
        Images("mine", torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(3))
    with pytest.raises(ValueError, match="mine: this needs labels"):
        Images("mine", torch.zeros(2, 3, 4, 4, dtype=torch.uint8), None).counts()


@pytest.mark.parametrize("installed_elsewhere", [False, True])
def test_the_scans_are_those_of_scikit_learn(installed_elsewhere: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read from its file, or through its function if a version has no such file."""
    from sklearn.datasets import load_digits

    if installed_elsewhere:
        monkeypatch.setattr(drawn_digits, "installed_folder", lambda name: None)
    drawn_digits._scans.cache_clear()
    strokes, labels = drawn_digits._scans()
    expected = load_digits()
    assert torch.equal(strokes, torch.tensor(expected.images / 16, dtype=torch.float32))
    assert labels.tolist() == expected.target.tolist()
    drawn_digits._scans.cache_clear()
