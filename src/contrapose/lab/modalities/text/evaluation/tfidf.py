"""Tf-idf, the baseline of a sentence encoder: cosine similarity of word counts, in which rare words weigh more.

Nothing is trained: scikit-learn's `TfidfVectorizer`, with its default settings, takes the words and their weights from the
scored texts themselves. It has thus read all texts that an encoder is scored on, which makes it a strong baseline.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from contrapose.extras import TEXT_PACKAGES, needs_extra
from contrapose.lab.modalities.text.evaluation.sts import SentencePair, correlations, scored_tasks


def tfidf_sts(pairs: Iterable[SentencePair]) -> dict[str, float]:
    """Return 100 · Spearman's correlation of tf-idf for each task, and the mean over the seven tasks.

    The result is empty if a task's texts have no words, or if all of its pairs are equally similar.

    pairs   as for `evaluate_sts`
    """
    scored = [pair for pair in pairs if pair.task]
    try:
        return correlations(scored, tfidf_cosine(scored))
    except ValueError:  # the encoder's own scores still count
        return {}


def tfidf_cosine(pairs: Sequence[SentencePair]) -> Tensor:
    """Return the cosine similarities (n,) of the pairs' tf-idf; raise ValueError if the texts of a task have no words."""
    cosine = torch.zeros(len(pairs), dtype=torch.float64)
    for rows in scored_tasks(pairs).values():
        first, second = _vectors([pairs[row].first for row in rows], [pairs[row].second for row in rows])
        cosine[rows] = torch.from_numpy(np.asarray(first.multiply(second).sum(1)).ravel())
    return cosine


def _vectors(*columns: Sequence[str]) -> list[Any]:
    """Return sparse unit vectors (n, words) for each column; a text without words is zero."""
    with needs_extra("tf-idf", "text", TEXT_PACKAGES):
        from sklearn.feature_extraction.text import TfidfVectorizer
    vectoriser = TfidfVectorizer().fit([text for column in columns for text in column])
    return [vectoriser.transform(column) for column in columns]
