"""Scores of any features, chance levels, and whether a score exceeds its baselines."""

from __future__ import annotations

import math

import pytest
import torch

from contrapose.lab.evaluation.feature_scores import chance_level, difference_margin, no_gain
from contrapose.lab.modalities import Split
from contrapose.lab.modalities.images.images import Images


def labelled(labels: list[int]) -> Images:
    pixels = torch.zeros(len(labels), 3, 2, 2, dtype=torch.uint8)
    return Images("some", pixels, torch.tensor(labels))


def test_chance_is_the_most_frequent_class_of_the_training_images() -> None:
    train, test = labelled([0, 1, 1, 1, 2, 3, 4, 5]), labelled([0, 1, 1, 5])
    split = Split(train, train, test)
    assert chance_level(split, "knn_top1") == 50
    assert chance_level(split, "linear_best_top1") == 50
    assert chance_level(split, "knn_top5") == pytest.approx(90)  # four of the five classes with one image
    assert chance_level(split, "few_shot") == pytest.approx(100 / 6)
    assert chance_level(split, "uniformity") is None
    assert chance_level(Split(train, None, None), "knn_top1") is None


@pytest.mark.parametrize("renamed", [False, True])
def test_chance_of_equally_frequent_classes_does_not_depend_on_their_names(renamed: bool) -> None:
    train = labelled([0] * 10 + [1] * 10)
    test = labelled([int(renamed)] * 18 + [int(not renamed)] * 2)
    assert chance_level(Split(train, train, test), "knn_top1") == 50
    assert chance_level(Split(train, train, test), "knn_top5") == 100


def test_chance_answers_no_class_without_training_samples() -> None:
    train, test = labelled([0, 2]), labelled([0, 1, 2, 3])
    assert chance_level(Split(train, train, test), "knn_top5") == 50


def test_a_gain_counts_only_beyond_the_uncertainty_of_the_test_set() -> None:
    baselines = {"raw pixels": {"knn_top1": 50.0}, "chance": {"knn_top1": 10.0, "knn_top5": 50.0}}
    scores = {"knn_top1": 54.0, "knn_top5": 90.0}
    # The standard error of the difference is about √((0.54 · 0.46 + 0.5 · 0.5) / n): 7.1 points for 100 images, 0.7 for 10,000.
    text = no_gain(scores, baselines, count=100, noun="test image")
    assert text == (
        "training has gained nothing measurable over raw pixels: knn_top1 is 54.0 %, against 50.0 % (on 100 test images, differences "
        "of up to 14.0 points can be chance)"
    )
    assert no_gain(scores, baselines, count=10_000, noun="test image") == ""
    worse = no_gain({"knn_top1": 40.0}, baselines, count=10_000, noun="test image")
    assert worse.startswith("the trained encoder is worse than raw pixels: knn_top1 is 40.0 %, against 50.0 %")
    assert no_gain(scores, {}, count=100, noun="test image") == ""


def test_all_and_none_of_few_samples_can_differ_by_chance() -> None:
    # With a hit and a miss added, two shares of 10/10 are 11/12, and their interval contains differences up to 12/10 of its margin.
    expected = 1.2 * 196 * math.sqrt(2 * (11 / 12) * (1 / 12) / 12)
    assert [difference_margin(share, share, 10) for share in (0, 100)] == pytest.approx([expected, expected])
    assert difference_margin(100, 0, 1) == 100
    text = no_gain({"knn_top1": 100.0}, {"chance": {"knn_top1": 0.0}}, count=1, noun="test image")
    assert text.endswith("(on 1 test image, differences of up to 100.0 points can be chance)")
