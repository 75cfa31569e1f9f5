"""Scores equal torchmetrics, scikit-learn and examples computed by hand."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from torchmetrics.classification import MulticlassAccuracy

from contrapose.lab.evaluation import METRICS, score


def test_eleven_point_average_precision_by_hand() -> None:
    """Ranked +, -, +, -, + of one class: precision 1 up to recall 1/3, 2/3 up to 2/3, 3/5 up to 1."""
    logits = torch.tensor([5.0, 4, 3, 2, 1])
    labels = torch.tensor([1, 0, 1, 0, 1])
    # Recalls 0 … 0.3 have precision 1 (four steps), 0.4 … 0.6 have 2/3 (three), 0.7 … 1 have 3/5 (four).
    expected = (4 * 1 + 3 * 2 / 3 + 4 * 3 / 5) / 11
    assert score("map_11", logits[:, None], labels[:, None]) == pytest.approx(100 * expected, abs=1e-4)
    # A second class that is ranked perfectly has 1; the mean is over classes.
    both = torch.stack([logits, torch.tensor([1.0, 1, -1, -1, -1])], 1)
    several = torch.stack([labels, torch.tensor([1, 1, 0, 0, 0])], 1)
    assert score("map_11", both, several) == pytest.approx(50 * (expected + 1), abs=1e-4)


@pytest.mark.parametrize(("rank", "count", "expected"), [(2, 4, 50.0), (4, 4, 25.0), (1, 4, 100.0), (1, 1, 100.0)])
def test_one_positive_has_the_precision_of_its_rank(rank: int, count: int, expected: float) -> None:
    logits = torch.arange(count, 0, -1.0)
    labels = (torch.arange(1, count + 1) == rank).long()
    assert score("map_11", logits[:, None], labels[:, None]) == pytest.approx(expected)


def test_large_logits_are_ranked() -> None:
    # As probabilities in float32, all of these are 1.
    labels = torch.tensor([0, 1, 1])
    for scale in (1.0, 10.0):
        logits = scale * torch.tensor([20.0, 25.0, 30.0])
        assert score("roc_auc", torch.stack([torch.zeros(3), logits], 1), labels) == pytest.approx(100)
        assert score("map_11", logits[:, None], labels[:, None]) == pytest.approx(100)
        three = torch.stack([-logits, logits, torch.full((3,), -1000.0)], 1)
        assert score("roc_auc", three, labels) == pytest.approx(100)


def test_a_class_without_test_images_has_no_area() -> None:
    logits = 9 * torch.eye(3)[torch.tensor([0, 0, 1, 1])]  # a perfect classifier; class 2 has no images
    assert score("roc_auc", logits, torch.tensor([0, 0, 1, 1])) == pytest.approx(100)
    with pytest.raises(ValueError, match="metric: roc_auc needs test images of at least two classes"):
        score("roc_auc", logits, torch.zeros(4, dtype=torch.long))


def test_a_recall_at_a_step_reaches_it() -> None:
    """With ten positives every recall is a tenth; in float32 some of them are below the step."""
    logits = torch.arange(20, 0, -1.0)
    labels = torch.cat([torch.ones(10), torch.zeros(10)]).long()
    assert score("map_11", logits[:, None], labels[:, None]) == pytest.approx(100, abs=1e-4)


def test_scores_equal_other_implementations() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(200, 5, generator=generator), torch.arange(200) % 5
    labels[:60] = 0
    assert score("accuracy", logits, labels) == pytest.approx(
        100 * float(MulticlassAccuracy(5, average="micro")(logits, labels))
    )
    balanced = balanced_accuracy_score(labels.numpy(), logits.argmax(1).numpy())
    assert score("mean_per_class", logits, labels) == pytest.approx(100 * balanced, abs=1e-4)
    two, binary = logits[:, :2], labels.clamp(max=1)
    expected = roc_auc_score(binary.numpy(), (two[:, 1] - two[:, 0]).numpy())
    assert score("roc_auc", two, binary) == pytest.approx(100 * expected, abs=1e-3)
    expected = roc_auc_score(labels.numpy(), logits.softmax(1).numpy(), multi_class="ovr")
    assert score("roc_auc", logits, labels) == pytest.approx(100 * expected, abs=1e-3)


def test_a_class_without_test_images_does_not_count() -> None:
    logits = torch.eye(3)[torch.tensor([0, 2, 1])]
    assert score("mean_per_class", logits, torch.tensor([0, 0, 1])) == pytest.approx(75)  # class 2 is predicted only


def test_only_classes_with_images_have_an_average_precision() -> None:
    logits, labels = torch.tensor([[2.0, 1, 0], [1.0, 2, 0]]), torch.tensor([[1, 0, 0], [0, 1, 0]])
    assert score("map_11", logits, labels) == pytest.approx(100)
    assert score("map_11", logits, torch.zeros_like(labels)) == 0


def test_wrong_names_and_labels_are_refused() -> None:
    assert set(METRICS) == {"accuracy", "mean_per_class", "roc_auc", "map_11"}
    with pytest.raises(ValueError, match="metric: expected one of accuracy, mean_per_class"):
        score("acuracy", torch.eye(2), torch.arange(2))
    with pytest.raises(ValueError, match="accuracy needs one class per image"):
        score("accuracy", torch.eye(2), torch.eye(2).long())
