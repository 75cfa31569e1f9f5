"""Nearest neighbours on frozen features."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from contrapose.pairs import queue
from contrapose.reduce import Block
from contrapose.reduce.statistics import Gradient


@dataclass(frozen=True)
class KNN:
    """k nearest neighbours.

    weights: "softmax" e^{s/temperature} (Wu et al.; DySTreSS, E1 and E2), "uniform" (majority; Lee, E11; Kukleva, E3 and
    E4) or "distance" 1/d. Cosine similarity and L2 distance agree on the ranking, since features are normalised.
    """

    k: int = 200
    weights: str = "softmax"
    temperature: float = 0.1

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k: expected at least one neighbour, got {self.k!r}")
        if self.weights not in ("softmax", "uniform", "distance"):
            raise ValueError(f"weights: expected 'softmax', 'uniform' or 'distance', got {self.weights!r}")

    def __call__(self, train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor) -> dict[str, float]:
        """top-1 and, with five classes or more, top-5 accuracy in per cent."""
        if self.k > len(train):
            raise ValueError(f"k: {self.k} neighbours of {len(train)} training images are more than there are")
        classes = int(train_labels.max()) + 1
        # Rows of the test set are reduced to votes a block at a time: 50,000 × 10,000 similarities are never there at once.
        (votes,) = queue(test.float(), test.float(), train.float()).reduce(_Votes(self, train_labels, classes))
        hit = votes.topk(min(5, classes), dim=1).indices == test_labels[:, None]
        scores = {"top1": 100 * float(hit[:, 0].float().mean())}
        return scores | ({"top5": 100 * float(hit.any(1).float().mean())} if classes >= 5 else {})


@dataclass(frozen=True, eq=False)
class _Votes:
    """For each row, what its nearest columns give each class: (b, classes)."""

    by: KNN
    labels: Tensor
    classes: int
    logit = None

    def __call__(self, block: Block) -> Tensor:
        nearest = block.similarity.topk(self.by.k, dim=1)
        if self.by.weights == "softmax":
            weight = (nearest.values / self.by.temperature).softmax(1)  # a factor for each row changes no ranking
        elif self.by.weights == "uniform":
            weight = torch.ones_like(nearest.values)
        else:
            weight = (2 - 2 * nearest.values).clamp(min=1e-12).rsqrt()
        empty = weight.new_zeros(len(weight), self.classes)
        return empty.scatter_add_(1, self.labels[nearest.indices], weight)

    def backward(self, block: Block, value: Tensor, gradient: Tensor) -> Gradient:
        """Votes do not move."""
        return None, None
