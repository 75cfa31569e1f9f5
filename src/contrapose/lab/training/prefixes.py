"""Scores of each prefix of the embedding that a run has trained (`--dims`), from the features of one pass over the data."""

from __future__ import annotations

from collections.abc import Mapping

from contrapose.lab.evaluation.feature_scores import score_features, scored_sources
from contrapose.lab.modalities import Split
from contrapose.lab.training.model import Model


def evaluate_with_prefixes(model: Model, split: Split, neighbours: int = 0) -> dict[str, float]:
    """Return the scores of `Model.evaluate` and, as dims_64_NAME, those of each prefix that the run has trained.

    model        model of a run with one encoder
    split        data sets with labels or pairs, such as `prepare(run)`
    neighbours   number of neighbours for kNN; 0: the run's setting
    """
    sources = scored_sources(split)
    if not model.run.dims or sources is None:
        return model.evaluate(split, neighbours or None)
    neighbours = neighbours or model.run.knn
    whole = {source: model.features(source) for source in sources}
    scores = score_features(whole.__getitem__, split, neighbours)
    for dims in model.run.dims:
        cut = {source: model.tower.prefix(features, dims) for source, features in whole.items()}
        scores |= name_by_prefix(dims, score_features(cut.__getitem__, split, neighbours))
    return scores


def name_by_prefix(dims: int, scores: Mapping[str, float]) -> dict[str, float]:
    """Return the scores of a prefix under their names in the output of `evaluate`.

    >>> name_by_prefix(64, {"knn_top1": 90.0})
    {'dims_64_knn_top1': 90.0}
    """
    return {f"dims_{dims}_{name}": score for name, score in scores.items()}
