"""Evaluate a trained run beyond its records. Each evaluation is done once; its result is kept in the run's directory.

linear:PROBE           top-1 accuracy of a linear probe after its last epoch; linear_top5:PROBE; of its best epoch:
                       linear_best:PROBE, linear_best_top5:PROBE; with a number of epochs: linear:PROBE:EPOCHS
knn:K:WEIGHTS          top-1 accuracy of k nearest neighbours (softmax, uniform, distance); knn_top5:K:WEIGHTS
few_shot, long_tail    linear SVMs, protocol of Kukleva et al.
metric:NAME:SPACE:IMAGES   a metric, such as uniformity, of the output of the encoder or the projector (SPACE), on all test or
                           all train images (IMAGES), or of new views of the train images against the memory bank (bank)
fine_tune              top-1 accuracy after fine-tuning, by the recipe of CACR's Table 18 for the encoder
transfer:…             the encoder on other data: see studies/transfer.py
detection:…            the encoder in a detector: see studies/detection.py
sentences:…            the encoder on scored or labelled sentences: see studies/sentences.py
zero_shot:…            two towers on labelled images: see studies/captions.py
map                    a t-SNE map of a sample
start:MEASURE          another measure, of the model before its training
knn_hits               a digit for each test image: 1 if the kNN of the records finds its class, else 0
recall_hits            a digit for each held-out pair of texts: 1 if the second is nearest to the first, else 0
references             kNN accuracy of the pixels, or recall of bags of words; that of the untrained encoder; and, for a run with
                       --init, that of the encoder that it starts from
histograms             similarities of positives, false and true negatives, before and after training
query_weights, own_class_weight, query_map, positive_ratio, negative_variation   see `studies.queries`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from contrapose.lab.evaluation import FINE_TUNING, KNN, Measures, features, few_shot
from contrapose.lab.modalities import Split
from contrapose.lab.report.embedding import project_to_plane
from contrapose.lab.studies.captions import zero_shot
from contrapose.lab.studies.detection import detection
from contrapose.lab.studies.downstream import data_key, paths_of
from contrapose.lab.studies.embeddings import metric, start
from contrapose.lab.studies.queries import query_map, query_weights
from contrapose.lab.studies.retrieval import recall_hits, recall_references
from contrapose.lab.studies.sentences import sentences
from contrapose.lab.studies.transfer import transfer
from contrapose.lab.training import Model
from contrapose.metrics import similarity_histograms


def is_evaluation(measure: str) -> bool:
    """Return whether a measure is an evaluation after training, rather than an entry of the records."""
    return measure.split(":")[0] in _EVALUATIONS.keys() | _ON_DOWNSTREAM_DATA.keys()


def evaluate(
    model: Model,
    split: Split,
    measure: str,
    downstream: Mapping[str, str] = MappingProxyType({}),
    data_root: Path | None = None,
) -> dict[str, Any]:
    """Return the value of the measure, by name, and the others that the same computation gives.

    `downstream` has the paths of data that is evaluated on after training, by the name that a measure gives it; `data_root` is
    the directory of downloads.
    """
    kind, *options = measure.split(":")
    if (len(model.towers) > 1) != (kind in _OF_TWO_TOWERS):
        towers = f"encoders of {' and '.join(model.towers)}" if len(model.towers) > 1 else "one encoder"
        raise ValueError(f"measures: {measure} cannot be computed of a run on {model.run.data}, which has {towers}")
    if kind in _ON_DOWNSTREAM_DATA:
        values = _ON_DOWNSTREAM_DATA[kind](model, split, *options, downstream=downstream, root=data_root)
        # With its data beside each value: the same measure on other data is another number.
        return values | {data_key(name): paths for name in values if (paths := paths_of(name, downstream))}
    return _EVALUATIONS[kind](model, split, *options)


def _labelled_features(model: Model, split: Split) -> Any:
    """Return training features and labels, then test features and labels."""
    labelled = model.labelled_features(split)
    if labelled is None:
        raise ValueError(f"{model.run.data} has no labelled training and test images to score with")
    return labelled


def _linear(model: Model, split: Split, *name: str) -> dict[str, Any]:
    return model.probe_scores(split, ":".join(name))


def fine_tuning_recipe(encoder: str) -> str:
    """Return the name in FINE_TUNING of CACR's recipe for an encoder."""
    return "vit" if "vit" in encoder else "cacr-resnet50"


def _fine_tune(model: Model, split: Split) -> dict[str, Any]:
    if split.probe is None or split.test is None:
        raise ValueError(f"{model.run.data} has no labelled training and test images to fine-tune on")
    with model.evaluation_context():
        scores = FINE_TUNING[fine_tuning_recipe(model.run.encoder)](
            model.encoder,
            split.probe,
            split.test,
            views=model.views,
            device=model.device,
            seed=model.run.seed,
            workers=model.reader.workers,
            timeout=model.reader.timeout,
        )
    return {"fine_tune": scores["top1"]}


def _knn(model: Model, split: Split, k: str, weights: str) -> dict[str, Any]:
    train, *rest = _labelled_features(model, split)
    # Smoke-scale data can have fewer training images than the paper has neighbours.
    scores = KNN(min(int(k), len(train)), weights)(train, *rest)
    return {f"knn:{k}:{weights}": scores["top1"], f"knn_top5:{k}:{weights}": scores.get("top5")}


def _knn_hits(model: Model, split: Split) -> dict[str, Any]:
    hit = KNN(model.run.knn).hits(*_labelled_features(model, split))[:, 0]
    return {"knn_hits": "".join(str(int(right)) for right in hit.tolist())}


def _references(model: Model, split: Split) -> dict[str, Any]:
    """Return kNN accuracies of raw pixels, of the untrained encoder and, if there is any, of that of --init; of pairs, recall."""
    if split.retrieval is not None:
        return recall_references(model, split)
    knn = KNN(model.run.knn)
    scores = {"untrained": knn(*_labelled_features(start(model, split, untrained=True), split))["top1"]}
    if model.run.init:
        scores["init"] = knn(*_labelled_features(start(model, split), split))["top1"]
    assert split.probe is not None
    assert split.test is not None
    train_pixels, test_pixels = (
        features(_pixels, model.reader(source).plain()) for source in (split.probe, split.test)
    )
    labels, test_labels = split.probe.labels, split.test.labels
    assert labels is not None
    assert test_labels is not None
    device = train_pixels.device
    pixels = knn(train_pixels, labels.to(device), test_pixels, test_labels.to(device))["top1"]
    return {"references": {"pixels": pixels, **scores}}


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
    return {"histograms": {"start": _similarities(start(model, split), split), "end": _similarities(model, split)}}


def _before_training(model: Model, split: Split, *measure: str) -> dict[str, Any]:
    """Return another evaluation, of the model before its training."""
    values = evaluate(start(model, split), split, ":".join(measure))
    return {f"start:{name}": value for name, value in values.items()}


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


# A probe computes all of its accuracies, so they share a function.
_EVALUATIONS: dict[str, Callable[..., dict[str, Any]]] = {
    "metric": metric,
    "linear": _linear,
    "linear_top5": _linear,
    "linear_best": _linear,
    "linear_best_top5": _linear,
    "fine_tune": _fine_tune,
    "knn": _knn,
    "knn_top5": _knn,
    "knn_hits": _knn_hits,
    "recall_hits": recall_hits,
    "references": _references,
    "start": _before_training,
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
# Evaluations that are given the paths of downstream data too.
_ON_DOWNSTREAM_DATA: dict[str, Callable[..., dict[str, Any]]] = {
    "detection": detection,
    "transfer": transfer,
    "sentences": sentences,
    "zero_shot": zero_shot,
}
_OF_TWO_TOWERS = ("zero_shot",)  # the others are of one encoder
