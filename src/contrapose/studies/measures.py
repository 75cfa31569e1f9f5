"""Evaluate a trained run beyond its records. Each evaluation is done once; its result is kept in the run's directory.

linear:PROBE           top-1 accuracy of a linear probe; linear_top5:PROBE
knn:K:WEIGHTS          top-1 accuracy of k nearest neighbours (softmax, uniform, distance); knn_top5:K:WEIGHTS
few_shot, long_tail    linear SVMs, protocol of Kukleva et al.
metric:NAME:SPACE:IMAGES   a metric, such as uniformity, of the output of the encoder or the projector (SPACE), on all test or
                           all train images (IMAGES)
map                    a t-SNE map of a sample
knn_hits               a digit for each test image: 1 if the kNN of the records finds its class, else 0
references             kNN accuracy of the pixels, and of the encoder that the training started from
histograms             similarities of positives, false and true negatives, before and after training
query_weights, own_class_weight, query_map, positive_ratio, negative_variation   see `studies.queries`
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from contrapose.evaluation import KNN, PROBES, Measures, features, few_shot
from contrapose.metrics import similarity_histograms
from contrapose.modalities import Split
from contrapose.report.embedding import project_to_plane
from contrapose.studies.queries import query_map, query_weights
from contrapose.training import Model, build


def is_evaluation(measure: str) -> bool:
    """Return whether a measure is an evaluation after training, rather than an entry of the records."""
    return measure.split(":")[0] in _EVALUATIONS


def evaluate(model: Model, split: Split, measure: str) -> dict[str, Any]:
    """Return the value of the measure, by name, and the others that the same computation gives."""
    kind, *options = measure.split(":")
    return _EVALUATIONS[kind](model, split, *options)


def _metric(model: Model, split: Split, name: str, space: str, images: str) -> dict[str, Any]:
    """Return all metrics of a space on all of these images, since most of the time goes into its embeddings."""
    source = split.train if images == "train" else split.held_out
    values = model.measure(source, Measures(images=0, drawn=1000), space=space)
    return {f"metric:{metric}:{space}:{images}": value for metric, value in values.items()}


def _labelled_features(model: Model, split: Split) -> Any:
    """Return training features and labels, then test features and labels."""
    labelled = model.labelled_features(split)
    if labelled is None:
        raise ValueError(f"{model.run.data} has no labelled training and test images to score with")
    return labelled


def _linear(model: Model, split: Split, probe: str) -> dict[str, Any]:
    scores = PROBES[probe](*_labelled_features(model, split), seed=model.run.seed)
    return {f"linear:{probe}": scores["top1"], f"linear_top5:{probe}": scores.get("top5")}


def _knn(model: Model, split: Split, k: str, weights: str) -> dict[str, Any]:
    train, *rest = _labelled_features(model, split)
    # Smoke-scale data can have fewer training images than the paper has neighbours.
    scores = KNN(min(int(k), len(train)), weights)(train, *rest)
    return {f"knn:{k}:{weights}": scores["top1"], f"knn_top5:{k}:{weights}": scores.get("top5")}


def _knn_hits(model: Model, split: Split) -> dict[str, Any]:
    hit = KNN(model.run.knn).hits(*_labelled_features(model, split))[:, 0]
    return {"knn_hits": "".join(str(int(right)) for right in hit.tolist())}


def _references(model: Model, split: Split) -> dict[str, Any]:
    """Return the kNN accuracies of raw pixels and of the encoder before training, as a reference."""
    train, labels, test, test_labels = _labelled_features(_start(model, split), split)
    knn = KNN(model.run.knn)
    assert split.probe is not None
    assert split.test is not None
    train_pixels, test_pixels = (
        features(_pixels, model.reader(source).plain()) for source in (split.probe, split.test)
    )
    return {
        "references": {
            "pixels": knn(train_pixels, labels, test_pixels, test_labels)["top1"],
            "start": knn(train, labels, test, test_labels)["top1"],
        }
    }


def _pixels(inputs: Tensor) -> Tensor:
    """Return the pixels themselves as features, at most 16 × 16 of each channel: more would take gigabytes."""
    return adaptive_avg_pool2d(inputs, min(16, inputs.shape[-1])).flatten(1)


def _few_shot(model: Model, split: Split) -> dict[str, Any]:
    return few_shot(*_labelled_features(model, split), seed=model.run.seed)


def _map(model: Model, split: Split) -> dict[str, Any]:
    z, labels, _ = model.sample_embeddings(split.held_out, 1000)
    if labels is None:
        raise ValueError(f"{model.run.data} has no labels to colour a map by")
    # Rounded, because the points are stored as JSON and only drawn.
    return {
        "map": {
            "points": [[round(x, 2) for x in p] for p in project_to_plane(z.cpu(), "tsne", 0).tolist()],
            "labels": labels.tolist(),
        }
    }


def _histograms(model: Model, split: Split) -> dict[str, Any]:
    """Return the histograms of the trained encoder, and of the one that it started from."""
    return {"histograms": {"start": _similarities(_start(model, split), split), "end": _similarities(model, split)}}


def _start(model: Model, split: Split) -> Model:
    """Return the model before its training."""
    # Building from the same seed reproduces the initial weights, so they need not be saved.
    network = build(model.run, len(split.train)).to(model.device)
    start = Model(model.run, network.encoder, network.projector, model.device)
    model.run.kind.prepare(start)
    return start


def _similarities(model: Model, split: Split) -> dict[str, Any]:
    """Return histograms of the similarities of positive and negative pairs in a sample of 2,000 images."""
    measures = Measures(2000)
    sample = measures.sample(split.held_out, model.views)
    raw = sample.reader(model.views, model.device, workers=0, timeout=0.0).resident
    assert raw is not None
    model.eval()
    first, second = measures.draw(model.project, model.views, raw, torch.arange(len(sample)), 0, 1)
    labels = None if sample.labels is None else sample.labels.to(first.device)
    histograms = similarity_histograms(first, second, labels)
    counts = {kind: getattr(histograms, kind).tolist() for kind in ("true_positive", "false_negative", "true_negative")}
    return {"edges": histograms.edges.tolist(), "means": list(histograms.means), **counts}


# A probe computes both accuracies, so top-1 and top-5 share a function.
_EVALUATIONS: dict[str, Callable[..., dict[str, Any]]] = {
    "metric": _metric,
    "linear": _linear,
    "linear_top5": _linear,
    "knn": _knn,
    "knn_top5": _knn,
    "knn_hits": _knn_hits,
    "references": _references,
    "few_shot": _few_shot,
    "long_tail": _few_shot,
    "map": _map,
    "histograms": _histograms,
    "query_weights": query_weights,
    "own_class_weight": query_weights,
    "query_map": query_map,
    "positive_ratio": query_map,
    "negative_variation": query_map,
}
