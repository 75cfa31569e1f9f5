"""Measures of two towers equal plain loops in float64, and take known values."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from contrapose.metrics import two_tower_measures

IMAGE_OF_TEXT = torch.tensor([2, 0, 1, 1, 4, 3, 2, 2])
Rows = list[list[float]]


def unit_rows(z: Tensor) -> Rows:
    return [[x / math.sqrt(sum(y * y for y in row)) for x in row] for row in z.double().tolist()]


def distance2(a: list[float], b: list[float]) -> float:
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def mean_row(rows: Rows) -> list[float]:
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def uniformity(rows: Rows) -> float:
    pairs = [(a, b) for i, a in enumerate(rows) for j, b in enumerate(rows) if i != j]
    return math.log(sum(math.exp(-2 * distance2(a, b)) for a, b in pairs) / len(pairs))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_measures_equal_plain_loops(dtype: torch.dtype, tolerance: float) -> None:
    """Embeddings of any length, as a network makes them; filterwarnings is "error", so they must not cause a warning."""
    images, texts = (3 * torch.randn(count, 4, dtype=dtype) for count in (5, 8))
    rows, columns = unit_rows(images), unit_rows(texts)
    distances = [distance2(rows[i], text) for i, text in zip(IMAGE_OF_TEXT.tolist(), columns, strict=True)]
    expected = {
        "modality_gap": math.sqrt(distance2(mean_row(rows), mean_row(columns))),
        "alignment": sum(distances) / len(distances),
        "image_uniformity": uniformity(rows),
        "text_uniformity": uniformity(columns),
    }
    assert two_tower_measures(images, texts, IMAGE_OF_TEXT) == pytest.approx(expected, abs=tolerance)


def test_known_values() -> None:
    z = torch.randn(6, 3, dtype=torch.float64)
    same = two_tower_measures(z, 2 * z, torch.arange(6))
    assert (same["modality_gap"], same["alignment"]) == pytest.approx((0, 0))
    assert same["image_uniformity"] == pytest.approx(same["text_uniformity"])
    north, south = torch.tensor([[0.0, 1.0]]).double().expand(3, 2), torch.tensor([[0.0, -1.0]]).double().expand(3, 2)
    apart = two_tower_measures(north, south, torch.arange(3))
    assert apart == pytest.approx({"modality_gap": 2, "alignment": 4, "image_uniformity": 0, "text_uniformity": 0})


def test_undefined_input_is_refused() -> None:
    with pytest.raises(ValueError, match="texts: embedding 1 is zero and has no direction"):
        two_tower_measures(torch.eye(2), torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.arange(2))
    with pytest.raises(ValueError, match="image_of_text: image 1 has no text"):
        two_tower_measures(torch.eye(2), torch.eye(2), torch.tensor([0, 0]))
