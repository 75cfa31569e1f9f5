"""The uncertainty of a difference between two STS scores, against the spread of that difference over many test sets."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from contrapose.lab.modalities.text.evaluation import SentencePair, correlations, jackknife_margin, rows_of_score
from contrapose.lab.modalities.text.evaluation.sts import STS_TASKS


def draw(generator: torch.Generator, count: int = 200) -> tuple[list[SentencePair], Tensor, Tensor]:
    """Return pairs, and two similarities with errors of which half is common to both."""
    gold, common, one, other = torch.randn(4, count, generator=generator, dtype=torch.float64)
    pairs = [SentencePair("STSB", "x", "test", score, "a", "b") for score in gold.tolist()]
    return pairs, gold + common + one, gold + common + other


def test_the_margin_is_that_of_repeated_test_sets() -> None:
    generator = torch.Generator().manual_seed(0)
    differences, margins = [], []
    for repeat in range(300):
        pairs, one, other = draw(generator)
        differences.append(correlations(pairs, one)["stsb"] - correlations(pairs, other)["stsb"])
        if repeat < 5:
            margins.append(jackknife_margin(pairs, one, other, "stsb"))
    expected = 1.96 * float(torch.tensor(differences).std())
    assert sum(margins) / len(margins) == pytest.approx(expected, rel=0.2)


def test_equal_similarities_differ_by_nothing() -> None:
    pairs, one, _ = draw(torch.Generator().manual_seed(1), count=60)
    assert jackknife_margin(pairs, one, one, "stsb") == 0


def test_a_mean_depends_on_the_pairs_of_its_tasks() -> None:
    names = [*STS_TASKS, "other"]
    pairs = [
        SentencePair(name, "x", split, float(n), "a", "b")
        for name in names
        for split in ("test", "dev")
        for n in range(4)
    ]
    assert len(rows_of_score(pairs, "sts_mean")) == 4 * len(STS_TASKS)
    assert [pairs[row].task for row in rows_of_score(pairs, "stsb_dev")] == ["stsb_dev"] * 4
    one, other = torch.rand(2, len(pairs), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert jackknife_margin(pairs, one, other, "sts_mean") > 0
