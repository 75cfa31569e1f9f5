"""Measure a trained run beyond its records. Each evaluation is done once, and its result kept in the run's directory.

linear:PROBE           top-1 accuracy of a linear probe; linear_top5:PROBE
knn:K:WEIGHTS          top-1 accuracy of k nearest neighbours (softmax, uniform, distance); knn_top5:K:WEIGHTS
few_shot, long_tail    linear SVMs, protocol of Kukleva et al.
NAME_whole             a metric, such as uniformity, on all test images instead of a sample
map                    a t-SNE map of a sample
histograms             similarities of positives, false and true negatives, before and after training
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from contrapose.evaluation import KNN, PROBES, Measures, few_shot
from contrapose.metrics import similarity_histograms
from contrapose.report.embedding import flat
from contrapose.training import Trainer


def is_evaluation(measure: str) -> bool:
    """Return whether a measure is an evaluation after training, rather than an entry of the records."""
    return measure.split(":")[0] in _MADE or measure.endswith("_whole")


def evaluate(trainer: Trainer, measure: str) -> dict[str, Any]:
    """Return the measure, and all others that the same computation gives."""
    kind, *words = measure.split(":")
    if measure.endswith("_whole") and kind not in _MADE:
        return {f"{name}_whole": value for name, value in trainer.measure(Measures(images=0, drawn=1000)).items()}
    return _MADE[kind](trainer, *words)


def _labelled(trainer: Trainer) -> Any:
    found = trainer.labelled_features()
    if found is None:
        raise ValueError(f"{trainer.run.data} has no labelled training and test images to score with")
    return found


def _linear(trainer: Trainer, probe: str) -> dict[str, Any]:
    scores = PROBES[probe](*_labelled(trainer), seed=trainer.run.seed)
    return {f"linear:{probe}": scores["top1"], f"linear_top5:{probe}": scores.get("top5")}


def _knn(trainer: Trainer, k: str, weights: str) -> dict[str, Any]:
    train, *rest = _labelled(trainer)
    scores = KNN(min(int(k), len(train)), weights)(train, *rest)  # all neighbours, if there are fewer than k
    return {f"knn:{k}:{weights}": scores["top1"], f"knn_top5:{k}:{weights}": scores.get("top5")}


def _few_shot(trainer: Trainer) -> dict[str, Any]:
    return few_shot(*_labelled(trainer), seed=trainer.run.seed)


def _map(trainer: Trainer) -> dict[str, Any]:
    z, labels, _ = trainer.sample_embeddings(1000)
    if labels is None:
        raise ValueError(f"{trainer.run.data} has no labels to colour a map by")
    return {
        "map": {
            "points": [[round(x, 2) for x in p] for p in flat(z.cpu(), "tsne", 0).tolist()],
            "labels": labels.tolist(),
        }
    }


def _histograms(trainer: Trainer) -> dict[str, Any]:
    """Return histograms of the trained network, and of the one that training started from."""
    fresh = Trainer(
        trainer.run, trainer.folder, say=lambda text: None, data_root=trainer.data_root, device=trainer.device
    )
    return {"histograms": {"start": _one_histogram(fresh), "end": _one_histogram(trainer)}}


def _one_histogram(trainer: Trainer) -> dict[str, Any]:
    how, recipe = Measures(2000), trainer.views.recipes[0]
    sample = how.sample(trainer.held_out, recipe)
    trainer.network.eval()
    every = torch.arange(len(sample))
    first, second = how.draw(trainer.embed, sample.pixels, every, recipe, trainer.device, 0, 1)
    labels = None if sample.labels is None else sample.labels.to(first.device)
    found = similarity_histograms(first, second, labels)
    kinds = ("true_positive", "false_negative", "true_negative")
    return {"edges": found.edges.tolist(), "means": list(found.means), **{k: getattr(found, k).tolist() for k in kinds}}


_MADE: dict[str, Callable[..., dict[str, Any]]] = {
    "linear": _linear,
    "linear_top5": _linear,
    "knn": _knn,
    "knn_top5": _knn,
    "few_shot": _few_shot,
    "long_tail": _few_shot,
    "map": _map,
    "histograms": _histograms,
}
