"""Features that cannot be classified are refused by every classifier, by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from contrapose.lab.evaluation import KNN, Probe, few_shot

Z, Y = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 0, 1, 1, 2, 2])
CLASSIFIERS: dict[str, Callable[..., dict[str, float]]] = {
    "knn": KNN(2, "uniform"),
    "probe": Probe(lr=0.1, epochs=1),
    "few shot": few_shot,
}


def with_nan(z: Tensor) -> Tensor:
    return torch.where(torch.arange(24).view(6, 4) == 9, torch.nan, z)


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": Z[:0], "train_labels": Y[:0]}, r"train: expected at least one embedding, got shape \(0, 4\)"),
        ({"test": Z[:0], "test_labels": Y[:0]}, r"test: expected at least one embedding, got shape \(0, 4\)"),
        ({"train": with_nan(Z)}, "train: features of sample 2 are not finite"),
        ({"test": with_nan(Z)}, "test: features of sample 2 are not finite"),
        ({"train_labels": Y[:3]}, r"train_labels: expected one integer per image, shape \(6,\), got \(3,\)"),
        ({"test_labels": Y[:3]}, r"test_labels: expected one integer per image, shape \(6,\), got \(3,\)"),
        ({"train_labels": Y.float()}, "train_labels: expected integers, got torch.float32"),
        ({"test_labels": Y - 1}, "test_labels: expected class numbers from 0 on, got -1"),
        ({"train": Z[0]}, r"train: expected embeddings of shape \(n, d\), got shape \(4,\)"),
    ],
)
def test_hostile_input_is_named(name: str, changes: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CLASSIFIERS[name](*({"train": Z, "train_labels": Y, "test": Z, "test_labels": Y} | changes).values())


def test_a_single_class() -> None:
    one = torch.zeros_like(Y)
    assert KNN(2)(Z, one, Z, one) == {"top1": 100.0}
    assert Probe(lr=0.1, epochs=1)(Z, one, Z, one) == {"top1": 100.0}
    with pytest.raises(ValueError, match="train_labels: expected at least two classes to tell apart, got only 0"):
        few_shot(Z, one, Z, one)
