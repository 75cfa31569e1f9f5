"""Scores of any features of a data set, the scores of random answers, and whether a score exceeds a baseline."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from torch import Tensor

from contrapose.lab.counts import count_of
from contrapose.lab.evaluation.knn import KNN
from contrapose.lab.modalities import Source, Split
from contrapose.metrics.retrieval import recall_at, recall_chance

Features = Callable[[Source], Tensor]  # returns the features (N, d) of a data set
Labelled = tuple[Tensor, Tensor, Tensor, Tensor]  # training features and labels, then test features and labels
_NORMAL = 1.96  # standard errors on each side of a score within which it lies in 95 % of the test sets


def scored_sources(split: Split) -> tuple[Source, Source] | None:
    """Return the two data sets whose features are scored: queries and documents, or training and test samples with labels."""
    if split.retrieval is not None:
        return split.retrieval.queries, split.retrieval.documents
    probe, test = split.probe, split.test
    if probe is None or test is None or probe.labels is None or test.labels is None:
        return None
    return probe, test


def labelled_features(features: Features, split: Split) -> Labelled | None:
    """Return training features and labels, then test features and labels; None if there are no labels."""
    sources = scored_sources(split)
    if sources is None or split.retrieval is not None:
        return None
    train, test = map(features, sources)
    train_labels, test_labels = (source.labels for source in sources)
    assert train_labels is not None
    assert test_labels is not None
    return train, train_labels.to(train.device), test, test_labels.to(test.device)


def score_features(features: Features, split: Split, neighbours: int) -> dict[str, float]:
    """Return the recall on held-out pairs, or the kNN accuracy on labelled samples, in per cent; empty if there are neither."""
    if split.retrieval is not None:
        pairs = split.retrieval
        queries, documents = features(pairs.queries), features(pairs.documents)
        return recall_at(queries, documents, ids=pairs.ids, query_ids=pairs.query_ids)
    labelled = labelled_features(features, split)
    scores = {} if labelled is None else KNN(neighbours)(*labelled)
    return {f"knn_{name}": score for name, score in scores.items()}


def chance_level(split: Split, name: str) -> float | None:
    """Return the score called `name` without looking at the samples, in per cent; None if it is unknown.

    Recall is that of a random ranking. Accuracy is that of always answering the most frequent classes of the training samples;
    it exceeds 1 / classes if the classes are imbalanced. Of equally frequent classes, some are answered at random. Few-shot
    scores are means over classes, or of balanced training samples: there, chance is 1 / classes.
    """
    if split.retrieval is not None:
        return recall_chance(split.retrieval.ids, query_ids=split.retrieval.query_ids).get(name)
    sources = scored_sources(split)
    if sources is None:
        return None
    labels, test_labels = sources[0].labels, sources[1].labels
    if labels is None or test_labels is None or labels.ndim > 1:
        return None
    if name.endswith(("_top1", "_top5")):
        classes = 1 + max(int(labels.max()), int(test_labels.max()))
        return 100 * float(_answered(labels.bincount(minlength=classes), int(name[-1]))[test_labels].mean())
    return 100 / len(labels.unique()) if name.endswith(("_shot", "long_tail")) else None


def _answered(counts: Tensor, answers: int) -> Tensor:
    """Return the probability of each class (C,) to be among the most frequent ones; equally frequent classes share the places.

    counts    number of training samples of each class, (C,)
    answers   number of classes to answer; at most those with samples are
    """
    answers = min(answers, int((counts > 0).sum()))
    least = counts.sort(descending=True).values[answers - 1]
    certain, tied = counts > least, counts == least
    return certain.double() + tied.double() * ((answers - certain.sum()) / tied.sum())


def no_gain(scores: Mapping[str, float], baselines: Mapping[str, Mapping[str, float]], *, count: int, noun: str) -> str:
    """Return a sentence if the first score does not exceed its best baseline by more than its uncertainty; else an empty text.

    scores      scores in per cent, by name
    baselines   scores of each baseline, keyed by the name of the baseline
    count       number of test samples
    noun        what a test sample is called, such as "test image"

    The uncertainty is the `difference_margin` of two shares of `count` samples.
    """
    name = next((name for name in scores if any(name in found for found in baselines.values())), "")
    if not name:
        return ""
    best = max((key for key in baselines if name in baselines[key]), key=lambda key: baselines[key][name])
    score, baseline = scores[name], baselines[best][name]
    margin = difference_margin(score, baseline, count)
    if score - baseline > margin:
        return ""
    values = f"{name} is {score:.1f} %, against {baseline:.1f} %"
    return no_gain_sentence(best, values, difference=score - baseline, margin=margin, count=count, noun=noun)


def difference_margin(one: float, other: float, count: int) -> float:
    """Return the largest difference between two shares that can be chance, in percentage points.

    one, other   the shares, in per cent
    count        number of samples of which they are shares

    This is the difference up to which the 95 % interval of Agresti and Caffo contains 0. One hit and one miss are added to each
    share: without them, the standard error would be 0 at 0 % and at 100 %, however few samples there are.
    """
    added = count + 2
    shares = [(share * count + 100) / added for share in (one, other)]
    # The interval's centre is the difference of these shares, which is count / added times that of the given ones.
    margin = _NORMAL * math.sqrt(sum(share * (100 - share) for share in shares) / added) * added / count
    return min(100.0, margin)


def no_gain_sentence(baseline: str, values: str, *, difference: float, margin: float, count: int, noun: str) -> str:
    """Return the sentence which says that a score does not exceed its baseline beyond the uncertainty of the test set.

    baseline     name of the baseline
    values       the two scores in words
    difference   the score minus that of the baseline
    margin       largest difference that can be chance
    count        number of test samples
    noun         what a test sample is called, such as "test image"
    """
    verdict = (
        "the trained encoder is worse than" if difference < -margin else "training has gained nothing measurable over"
    )
    return f"{verdict} {baseline}: {values} (on {count_of(count, noun)}, differences of up to {margin:.1f} points can be chance)"
