"""The most similar other image of a class, by plain loops, and images that are alone in their class."""

from __future__ import annotations

import math

import pytest
import torch

from contrapose.lab.modalities.images import mining
from contrapose.lab.modalities.images.images import Images
from contrapose.lab.modalities.images.mining import check_labelled, mine_labelled, nearest_of_class


@pytest.mark.parametrize("block", [1, 2**24])
def test_the_nearest_image_of_the_same_class(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mining, "_BLOCK", block)
    z = torch.randn(30, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.arange(30) % 4
    labels[29] = 9
    nearest = list[int]()
    for one, vector in enumerate(z.tolist()):
        others = [other for other in range(30) if other != one and labels[other] == labels[one]]
        cosine = {
            other: sum(x * y for x, y in zip(vector, z[other].tolist(), strict=True)) / math.hypot(*z[other].tolist())
            for other in others
        }
        nearest.append(max(others, key=lambda other, cosine=cosine: cosine[other], default=-1))  # type: ignore[misc]
    assert nearest_of_class(z, labels).tolist() == nearest
    assert nearest[29] == -1


def test_images_alone_in_their_class_are_left_out() -> None:
    labels = torch.tensor([0, 1, 0, 2])
    source = Images("mine", torch.zeros(4, 3, 2, 2, dtype=torch.uint8), labels)
    task = mine_labelled(source, torch.randn(4, 3), ["a note"])
    assert task.queries == ["0", "2"]
    assert task.positives == [[2], [0]]
    assert task.excluded == [[0], [2]]
    assert task.documents == ["0", "1", "2", "3"]
    assert task.notes == ("a note", "left out, since no other image of mine has their class: 2 images")
    with pytest.raises(ValueError, match="data: expected a class with at least two images, but mine has none"):
        mine_labelled(source.subset([0, 1, 3]), torch.randn(3, 3), [])


def test_images_without_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="data: expected images with classes, but plain has none"):
        check_labelled(Images("plain", torch.zeros(4, 3, 2, 2, dtype=torch.uint8), None))
