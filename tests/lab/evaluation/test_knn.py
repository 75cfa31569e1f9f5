from __future__ import annotations

import math

import pytest
import torch

from contrapose.lab.evaluation import KNN


def predicted_class(k: int, weights: str, train: list[list[float]], labels: list[int], x: list[float]) -> int:
    """The class with the most votes, by plain loops."""

    def unit(v: list[float]) -> list[float]:
        n = math.sqrt(sum(a * a for a in v))
        return [a / n for a in v]

    sims = [sum(a * b for a, b in zip(unit(x), unit(t), strict=True)) for t in train]
    nearest = sorted(range(len(train)), key=lambda i: -sims[i])[:k]
    votes: dict[int, float] = {}
    for i in nearest:
        weight = {"softmax": math.exp(sims[i] / 0.1), "uniform": 1.0, "distance": 1 / math.sqrt(2 - 2 * sims[i])}[
            weights
        ]
        votes[labels[i]] = votes.get(labels[i], 0.0) + weight
    return max(votes, key=lambda label: votes[label])


@pytest.mark.parametrize("weights", ["softmax", "distance"])
@pytest.mark.parametrize("k", [1, 3, 11])
def test_accuracy_equals_a_plain_loop(weights: str, k: int) -> None:
    train, test = torch.randn(40, 5), torch.randn(25, 5)
    labels, test_labels = torch.randint(0, 6, (40,)), torch.randint(0, 6, (25,))
    predicted = [predicted_class(k, weights, train.tolist(), labels.tolist(), x) for x in test.tolist()]
    accuracy = 100 * sum(a == b for a, b in zip(predicted, test_labels.tolist(), strict=True)) / 25
    assert KNN(k, weights)(train, labels, test, test_labels)["top1"] == pytest.approx(accuracy)


def test_weights_do_not_matter_with_one_neighbour() -> None:
    train, test = torch.randn(60, 5), torch.randn(30, 5)
    labels, test_labels = torch.randint(0, 5, (60,)), torch.randint(0, 5, (30,))
    unit = torch.nn.functional.normalize
    nearest = torch.cdist(unit(test), unit(train)).argmin(1)
    accuracy = 100 * float((labels[nearest] == test_labels).float().mean())
    for weights in ("softmax", "uniform", "distance"):
        assert KNN(1, weights)(train, labels, test, test_labels)["top1"] == pytest.approx(accuracy)


def test_near_duplicates_vote_by_their_distance() -> None:
    """One neighbour at a distance of 1e-5 has more weight, 1/d, than two of another class at 4e-5 and 5e-5."""
    x = torch.nn.functional.normalize(torch.arange(1.0, 9.0)[None], dim=1)
    # Perpendicular to x, so that a step changes the direction and not the length.
    step = torch.tensor([[2.0, -1.0, 0, 0, 0, 0, 0, 0]]) / 5**0.5
    train = torch.cat([x + 1e-5 * step, x + 4e-5 * step, x - 5e-5 * step, -x])
    assert KNN(3, "distance")(train, torch.tensor([0, 1, 1, 1]), x, torch.tensor([0])) == {"top1": 100.0}


def test_distance_weights_differ_from_a_majority() -> None:
    """Chords of 0.1 (class 0), 0.3 and 0.3 (class 1): 1/0.1 = 10 against 2/0.3 = 6.7, but one vote against two."""
    angles = 2 * torch.asin(torch.tensor([0.1, 0.3, -0.3]) / 2)
    train, labels = torch.stack([angles.cos(), angles.sin()], dim=1), torch.tensor([0, 1, 1])
    x, right = torch.tensor([[1.0, 0.0]]), torch.tensor([0])
    assert KNN(3, "distance")(train, labels, x, right) == {"top1": 100.0}
    assert KNN(3, "uniform")(train, labels, x, right) == {"top1": 0.0}


@pytest.mark.parametrize("weights", ["softmax", "uniform", "distance"])
def test_collapsed_features_are_classified_by_chance(weights: str) -> None:
    labels = torch.arange(60) % 3
    for noise in (0.0, 1e-8):
        features = torch.ones(60, 4) + noise * torch.randn(60, 4)
        assert 0 <= KNN(5, weights)(features, labels, features, labels)["top1"] <= 50


def test_top_five_and_invalid_settings() -> None:
    train, labels = torch.randn(50, 4), torch.arange(50) % 6
    assert KNN(50)(train, labels, train, labels)["top5"] >= 50.0
    assert "top5" not in KNN(50)(train, labels % 5, train, labels % 5)  # it would always be 100
    with pytest.raises(ValueError, match="k: expected at most 50 neighbours, the number of training samples, got 60"):
        KNN(60)(train, labels, train, labels)
    with pytest.raises(ValueError, match="weights: expected"):
        KNN(3, "cosine")


def test_a_class_without_votes_is_not_among_the_first_five() -> None:
    # One neighbour votes for class 0; the other four places would go to classes 1 to 4 by their order alone.
    train, labels = torch.eye(8), torch.arange(8)
    test, truth = torch.eye(8)[[0, 0]], torch.tensor([0, 3])
    assert KNN(1)(train, labels, test, truth) == {"top1": 50.0, "top5": 50.0}
