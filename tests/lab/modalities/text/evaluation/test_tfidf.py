"""Tf-idf beside the scores of sentence encoders, against its formula."""

from __future__ import annotations

import math

import pytest
import torch

from contrapose.lab.modalities.text.evaluation import SentencePair, spearman, tfidf_sts
from contrapose.lab.modalities.text.sentences import Sentences, weigh_tokens

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


def test_scores_follow_the_formula() -> None:
    texts = [text for pair in TEXTS for text in pair]
    expected = [
        sum(weights(a, texts)[word] * weights(b, texts).get(word, 0.0) for word in weights(a, texts)) for a, b in TEXTS
    ]
    scores = torch.tensor([pair.score for pair in pairs()])
    assert tfidf_sts(pairs()) == {"stsb": pytest.approx(100 * spearman(torch.tensor(expected), scores))}


class Words:
    """A tokenizer of which only the number of padding is used."""

    pad_token_id = 0


def test_tokens_are_weighed_like_words() -> None:
    texts = [text for pair in TEXTS for text in pair]
    numbers = {word: number for number, word in enumerate(sorted({word for text in texts for word in text.split()}), 1)}
    rows = [[numbers[word] for word in text.split() if len(word) > 1] for text in texts]
    tokens = torch.tensor([row + [0] * (6 - len(row)) for row in rows])[:, None]
    halves = [Sentences(name="", tokens=part, tokenizer=Words()) for part in tokens.split(3)]
    vectors = torch.nn.functional.normalize(torch.cat(weigh_tokens(halves)))
    for row, text in zip(vectors, texts, strict=True):
        expected = sorted(weights(text, texts).values())
        assert row[row > 0].sort().values.tolist() == pytest.approx(expected, rel=1e-6)


def test_each_task_is_scored_by_its_own_words() -> None:
    both = [*pairs(), *pairs("STS12", "dev"), *pairs("SICKR", "train")]
    scores = tfidf_sts(both)
    assert scores.keys() == {"stsb", "sts12_dev"}
    assert scores["stsb"] == tfidf_sts(pairs())["stsb"]


def test_pairs_without_words_or_differences_have_no_score() -> None:
    assert tfidf_sts([pair._replace(first="?", second="!") for pair in pairs()]) == {}
    assert tfidf_sts([pair._replace(first="the same", second="the same") for pair in pairs()]) == {}
