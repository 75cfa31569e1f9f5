"""Semantic textual similarity (STS): the rank correlation between cosine similarity and human scores.

SentEval's aggregation "all" is used, as in SimCSE and DySTreSS: the pairs in all subsets of a data set are ranked together.
The mean of the subsets' correlations, which other papers report, is a different number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from contrapose.extras import TEXT_PACKAGES, needs_extra
from contrapose.lab.modalities.text.evaluation.tables import read_table
from contrapose.metrics import alignment, uniformity
from contrapose.pairs import unit

COLUMNS = ("dataset", "subset", "split", "score", "sentence1", "sentence2")
# SimCSE's and DySTreSS's tables give the average over these test sets.
STS_TASKS = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr")
_SUFFIXES = {"test": "", "dev": "_dev"}  # pairs in other splits are not scored
_POSITIVE = 4.0  # SimCSE: STS-B pairs with a score higher than this are positive pairs


class SentencePair(NamedTuple):
    """Two sentences, and the human score for their similarity."""

    dataset: str
    subset: str
    split: str
    score: float
    first: str
    second: str

    @property
    def task(self) -> str:
        """Return the name of the score that this pair contributes to, such as sts12 or stsb_dev; empty for training pairs."""
        return f"{self.dataset.lower()}{_SUFFIXES[self.split]}" if self.split in _SUFFIXES else ""


def read_sts(path: Path) -> list[SentencePair]:
    """Read pairs from a tab-separated file with the columns dataset, subset, split, score, sentence1 and sentence2."""
    pairs = []
    for place, (dataset, subset, split, score, first, second) in read_table(path, COLUMNS, option="sts"):
        for column, text in zip(COLUMNS[4:], (first, second), strict=True):
            if not text.strip():
                raise ValueError(f"sts: {place}: {column} is empty; expected a sentence")
        pairs.append(SentencePair(dataset, subset, split, _number(score, place), first, second))
    if not any(pair.task for pair in pairs):
        splits = ", ".join(sorted({pair.split for pair in pairs}))
        raise ValueError(
            f"sts: {path} has no pairs to score; expected pairs in the split test or dev, got only {splits}"
        )
    return pairs


def _number(text: str, place: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"sts: {place}: expected a number as score, got {text!r}")
    return number


def evaluate_sts(encode: Callable[[Sequence[str]], Tensor], pairs: Iterable[SentencePair]) -> dict[str, float]:
    """Return 100 · Spearman's correlation for each task, the mean over tasks, and alignment and uniformity on STS-B.

    encode   function from n texts to embeddings (n, d)
    pairs    pairs in the splits test (score DATASET) and dev (score DATASET_dev); other splits are left out

    sts_mean is the mean over the seven `STS_TASKS`; it is missing if one of these tasks is missing.
    """
    scored = [pair for pair in pairs if pair.task]
    return score_embeddings(scored, *embed_pairs(encode, scored))


def score_embeddings(pairs: Sequence[SentencePair], first: Tensor, second: Tensor) -> dict[str, float]:
    """Return the scores of `evaluate_sts` for the output of `embed_pairs`."""
    scores = correlations(pairs, cosine_of(first, second))
    rows_of, gold = scored_tasks(pairs), torch.tensor([pair.score for pair in pairs], dtype=torch.float64)
    for task in ("stsb", "stsb_dev"):
        if rows := rows_of.get(task):
            geometry = pair_geometry(first[rows], second[rows], gold[rows])
            scores |= {f"{task}_{name}": value for name, value in geometry.items()}
    return scores


def embed_pairs(encode: Callable[[Sequence[str]], Tensor], pairs: Sequence[SentencePair]) -> tuple[Tensor, Tensor]:
    """Return unit vectors of the pairs' first and second sentences, each (n, d)."""
    return unit_pairs(encode(sentences_of(pairs)))


def sentences_of(pairs: Sequence[SentencePair]) -> list[str]:
    """Return both sentences of each pair, one pair after the other."""
    return [text for pair in pairs for text in (pair.first, pair.second)]


def unit_pairs(features: Tensor) -> tuple[Tensor, Tensor]:
    """Return unit vectors of first and of second sentences, each (n, d), from the features (2n, d) of `sentences_of`."""
    first, second = unit(features).unflatten(0, (-1, 2)).unbind(1)
    return first, second


def cosine_of(first: Tensor, second: Tensor) -> Tensor:
    """Return the cosine similarities (n,) of unit vectors, in float64: rounding would make ranks equal."""
    return (first.double() * second.double()).sum(1)


def scored_tasks(pairs: Sequence[SentencePair]) -> dict[str, list[int]]:
    """Return the rows of each task's pairs."""
    rows_of: dict[str, list[int]] = {}
    for row, pair in enumerate(pairs):
        rows_of.setdefault(pair.task, []).append(row)
    return rows_of


def correlations(pairs: Sequence[SentencePair], cosine: Tensor) -> dict[str, float]:
    """Return 100 · Spearman's correlation of the pairs' cosine similarities (n,) for each task, and `sts_mean`."""
    gold = torch.tensor([pair.score for pair in pairs], dtype=torch.float64)
    scores = {task: 100 * _correlation(task, cosine[rows], gold[rows]) for task, rows in scored_tasks(pairs).items()}
    if all(task in scores for task in STS_TASKS):
        scores["sts_mean"] = sum(scores[task] for task in STS_TASKS) / len(STS_TASKS)
    return scores


def pair_geometry(first: Tensor, second: Tensor, gold: Tensor) -> Mapping[str, float]:
    """Return alignment on the pairs with a score above 4 and uniformity on all sentences, as SimCSE defines them.

    first, second   unit vectors of the pairs' sentences, each (n, d)
    gold            human scores from 0 to 5, (n,)

    A sentence that occurs in several pairs counts each time. Alignment is missing if no score is above 4.
    """
    positive = gold > _POSITIVE
    aligned = {"alignment": alignment(first[positive], second[positive])} if bool(positive.any()) else {}
    return {**aligned, "uniformity": uniformity(torch.cat([first, second]))}


def _correlation(task: str, cosine: Tensor, gold: Tensor) -> float:
    try:
        return spearman(cosine, gold)
    except ValueError as error:
        raise ValueError(f"sts: {task}: {error}") from error


def spearman(x: Tensor, y: Tensor) -> float:
    """Return Spearman's rank correlation between two samples (n,); equal values share their mean rank.

    >>> round(spearman(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 3.0, 2.0])), 4)
    0.5
    """
    if x.ndim != 1 or x.shape != y.shape:
        raise ValueError(f"expected two samples of equal length, got shapes {tuple(x.shape)} and {tuple(y.shape)}")
    for name, values in (("first", x), ("second", y)):
        if len(values) < 2 or bool((values == values[0]).all()):
            raise ValueError(
                f"a rank correlation needs different values, but all {len(values)} of the {name} sample are equal"
            )
    with needs_extra("Spearman's correlation", "text", TEXT_PACKAGES):
        from scipy.stats import spearmanr
    return float(spearmanr(x.double().numpy(force=True), y.double().numpy(force=True)).statistic)
