"""Tf-idf beside the scores of sentence encoders, against its formula."""

from __future__ import annotations

import math

import pytest
import torch

from contrapose.lab.modalities.text.evaluation import SentencePair, evaluate_sts, spearman, tfidf_features, tfidf_sts

TEXTS = [
    ("a red dog runs", "the red dog sleeps"),
    ("two cats sleep", "two cats run"),
    ("rain falls", "snow falls on the hill"),
    ("nothing alike", "red rain"),
]


def pairs(dataset: str = "STSB", split: str = "test") -> list[SentencePair]:
    return [SentencePair(dataset, "x", split, float(i % 3), *texts) for i, texts in enumerate(TEXTS)]


def weights(text: str, texts: list[str]) -> dict[str, float]:
    """The formula: counts · (1 + ln((1 + n) / (1 + number of texts with the word))), scaled to unit length."""
    words = [word for word in text.split() if len(word) > 1]
    value = {
        word: words.count(word) * (1 + math.log((1 + len(texts)) / (1 + sum(word in other.split() for other in texts))))
        for word in words
    }
    length = math.sqrt(sum(number**2 for number in value.values()))
    return {word: number / length for word, number in value.items()}


def test_features_follow_the_formula() -> None:
    texts = [text for pair in TEXTS for text in pair]
    first, second = tfidf_features(*map(list, zip(*TEXTS, strict=True)))
    expected = [
        sum(weights(a, texts)[word] * weights(b, texts).get(word, 0.0) for word in weights(a, texts)) for a, b in TEXTS
    ]
    torch.testing.assert_close((first * second).sum(1), torch.tensor(expected))
    scores = torch.tensor([pair.score for pair in pairs()])
    assert tfidf_sts(pairs()) == {"tfidf_stsb": pytest.approx(100 * spearman(torch.tensor(expected), scores))}


def test_each_task_is_scored_by_its_own_words() -> None:
    both = [*pairs(), *pairs("STS12", "dev"), *pairs("SICKR", "train")]
    scores = tfidf_sts(both)
    assert scores.keys() == {"tfidf_stsb", "tfidf_sts12_dev"}
    assert scores["tfidf_stsb"] == tfidf_sts(pairs())["tfidf_stsb"]
    # The same pairs are scored as for an encoder.
    dense = evaluate_sts(lambda texts: tfidf_features(list(texts))[0], pairs())
    assert scores["tfidf_stsb"] == pytest.approx(dense["stsb"])


def test_pairs_without_words_or_differences_have_no_score() -> None:
    assert tfidf_sts([pair._replace(first="?", second="!") for pair in pairs()]) == {}
    assert tfidf_sts([pair._replace(first="the same", second="the same") for pair in pairs()]) == {}
