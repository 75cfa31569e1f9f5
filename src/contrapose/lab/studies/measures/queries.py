"""Examine queries of a trained run: one query with its positives and negatives, and means over many queries.

A query is a random view of a test image, its positives are four other views of the image, and its negatives are views of
the other images in its mini-batch, which has the run's batch size.
"""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from contrapose.lab.evaluation import Measures
from contrapose.lab.modalities import Source, Split
from contrapose.lab.report.embedding import project_to_plane
from contrapose.lab.studies.measures.measure import Context, Evaluation, Words
from contrapose.lab.training import Model, Run
from contrapose.losses.parse import parse
from contrapose.randomness import permutation

POSITIVES = 4
_EXTREMES = 4  # number of negatives shown with the largest weights, and with the smallest
_QUERIES = 2048  # number of queries for means; at least one mini-batch


@dataclass(frozen=True, eq=False)
class QueryBatches:
    """Views of test images in a random but fixed order, and their unit embeddings, in mini-batches."""

    sample: Source
    raw: Tensor  # (n, …): the images
    z: Tensor  # (1 + POSITIVES, n, d): the query of each image, and its positives
    size: int  # mini-batch size

    @classmethod
    def of(cls, model: Model, split: Split) -> QueryBatches:
        """Return as many full mini-batches of held-out images as the means need."""
        size = min(model.run.batch, len(split.held_out))
        count = min(max(1, _QUERIES // size), len(split.held_out) // size) * size
        measures = Measures(images=count)
        sample = measures.sample(split.held_out, model.views)
        # Shuffled, because `sample` sorts by index and folders are sorted by class.
        sample = sample.subset(permutation(count, 1)).in_memory(model.views)
        raw = sample.reader(model.views, model.device, workers=0, timeout=0.0).resident
        assert raw is not None
        model.eval()
        z = measures.draw(model.project, model.views, raw, torch.arange(count), *range(1 + POSITIVES))
        return cls(sample, raw, z, size)

    def positive_costs(self) -> Tensor:
        """Return ‖z - z⁺‖² for each query and positive, (n, POSITIVES)."""
        return (self.z[:1] - self.z[1:]).square().sum(-1).T

    def negative_costs(self) -> Tensor:
        """Return ‖z - z⁻‖² for each query and the other queries in its mini-batch, (n, size - 1)."""
        costs = []
        for part in self.z[0].split(self.size):
            distances = (2 - 2 * part @ part.T).clamp(min=0)
            costs.append(distances[_others(len(part), part.device)].view(len(part), -1))
        return torch.cat(costs)

    def same_class(self) -> Tensor | None:
        """Return whether each negative belongs to the query's class, (n, size - 1); None without labels."""
        if self.sample.labels is None:
            return None
        same = [part[:, None] == part for part in self.sample.labels.split(self.size)]
        return torch.cat([equal[_others(len(equal), equal.device)].view(len(equal), -1) for equal in same])


def _others(size: int, device: torch.device) -> Tensor:
    """Return which pairs consist of two different samples, bool (size, size)."""
    return ~torch.eye(size, dtype=torch.bool, device=device)


@dataclass(frozen=True)
class QueryWeights(Evaluation):
    """Weights π⁺ and π⁻ of a query's positives and negatives in CACR.

    query_weights      images of one query, its positives and negatives with their weights
    own_class_weight   mean weight π⁻ of a query's negatives of its own class, in units of equal weights
    """

    name: str
    summary = Words(
        "weights of one query's positives and negatives beside their images; mean weight of negatives of a query's own class"
    )

    def evaluate(self, context: Context) -> dict[str, Any]:
        """Return images and weights for one query, and the mean weight of negatives from a query's own class."""
        model, batches = context.model, QueryBatches.of(context.model, context.split)
        settings = parse(model.run.loss, model.run.data).keywords
        positive = (settings.get("t_pos", 1.0) * batches.positive_costs()).softmax(1)
        negative = (-settings.get("t_neg", 2.0) * batches.negative_costs()).softmax(1)
        return {
            "query_weights": _pictures(model, batches, positive[0].cpu(), negative[0].cpu()),
            **_own_class(batches, negative.cpu()),
        }


def _pictures(model: Model, batches: QueryBatches, positive: Tensor, negative: Tensor) -> dict[str, Any]:
    """Return images and views of the query, its positives and some negatives, with their weights, as JSON."""
    ranked, shown = negative.argsort(descending=True), min(_EXTREMES, len(negative) // 2)
    chosen = [*ranked[:shown].tolist(), *ranked[len(ranked) - shown :].tolist()]
    images = torch.tensor([0, *(1 + number for number in chosen)])  # negative j of query 0 is image j + 1
    raw, views = batches.raw[images.to(model.device)], model.views
    seed = Measures().seed
    drawn = views.draw(raw, images.to(model.device), seed=seed, epoch=0)
    own = raw[:1].expand(POSITIVES, *raw.shape[1:])
    epochs = torch.arange(1, 1 + POSITIVES, device=model.device)
    positives = views.draw(own, torch.zeros_like(epochs), seed=seed, epoch=epochs)
    plain, augmented, others = (
        [base64.b64encode(png).decode() for png in model.kind.thumbnails(inputs, views)]
        for inputs in (views.plain(raw), drawn, positives)
    )
    names = _class_names(batches.sample, images)
    weights = [None, *negative[chosen].tolist()]
    entries = [
        {"view": view, "image": image, "class": name, "weight": weight}
        for view, image, name, weight in zip(augmented, plain, names, weights, strict=True)
    ]
    return {
        "query": entries[0],
        "positives": [{"view": png, "weight": float(w)} for png, w in zip(others, positive, strict=True)],
        "nearest": entries[1 : 1 + shown],
        "farthest": entries[1 + shown :],
        "weights": [round(weight, 6) for weight in negative[ranked].tolist()],
    }


def _class_names(sample: Source, index: Tensor) -> list[str]:
    if sample.labels is None:
        return [""] * len(index)
    return [sample.classes[c] if c < len(sample.classes) else str(c) for c in sample.labels[index].tolist()]


def _own_class(batches: QueryBatches, weights: Tensor) -> dict[str, float]:
    """Return the mean weight of negatives from a query's own class, times M - 1, and its standard error over queries."""
    same = batches.same_class()
    if same is None or not bool(same.any()):
        return {}
    some = same.any(1)  # queries that have a negative from their own class in the mini-batch
    relative = (weights * same).sum(1)[some] / same.sum(1)[some] * weights.shape[1]
    error = float(relative.std()) / math.sqrt(len(relative))
    return {"own_class_weight": float(relative.mean()), "own_class_weight_error": error}


@dataclass(frozen=True)
class QueryMap(Evaluation):
    """Distances of a query to its positives and negatives at each kept epoch.

    query_map            t-SNE of one query with positives and negatives, and the means below at each kept epoch
    positive_ratio       distance to the positives as a share of that to the negatives
    negative_variation   standard deviation of the distances to the negatives as a share of their mean
    """

    name: str

    def describe(self, run: Run) -> Words:
        """Return the words."""
        if self.name == "negative_variation":
            return Words("variation of the distances to negatives")
        return Words(
            "t-SNE of one query's positives and negatives at three epochs; distance to positives as a share of that to negatives"
        )

    def evaluate(self, context: Context) -> dict[str, Any]:
        """Return a map and means for each kept epoch, and the means of the last epoch under their own names."""
        model, kept = context.model, sorted(context.model.run.keep)
        epochs = [{"epoch": epoch, **_map_at(model.at_epoch(epoch), context.split)} for epoch in kept]
        if not epochs:
            raise ValueError("query_map: the run kept no weights; set `keep` to the epochs to draw")
        return {"query_map": epochs, **{name: epochs[-1][name] for name in ("positive_ratio", "negative_variation")}}


def _map_at(model: Model, split: Split) -> dict[str, Any]:
    batches = QueryBatches.of(model, split)
    positive, negative = batches.positive_costs().sqrt(), batches.negative_costs().sqrt()
    z = torch.cat([batches.z[:, 0], batches.z[0, 1 : batches.size]])  # the query, its positives, its negatives
    points = project_to_plane(z.cpu(), "tsne", 0)
    return {
        "points": [[round(x, 2) for x in point] for point in (points - points[0]).tolist()],
        "positive_ratio": float((positive.mean(1) / negative.mean(1)).mean()),
        "negative_variation": float((negative.std(1) / negative.mean(1)).mean()),
    }
