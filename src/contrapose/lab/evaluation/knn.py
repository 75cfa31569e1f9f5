"""k-nearest-neighbour classification of frozen features."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from contrapose.lab.evaluation.features import check_labelled
from contrapose.pairs import Pairs, queue
from contrapose.reduce import Block
from contrapose.reduce.statistics import Gradient
from contrapose.reduce.unit import squared_distances


@dataclass(frozen=True)
class KNN:
    """A k-nearest-neighbour classifier.

    k             number of neighbours
    weights       "softmax": e^{s/temperature} (Wu et al.; DySTreSS with k = 200 on CIFAR and k = 20 on ImageNet-100)
                  "uniform": majority vote (Lee; the long-tail protocol of Kukleva et al.)
                  "distance": 1/d (DySTreSS's long-tail tables as described in the paper; its code votes uniformly)
    temperature   temperature of the "softmax" weights

    Features are normalised, so cosine similarity and L2 distance rank neighbours in the same order.
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
        """Return top-1 and, with more than five classes, top-5 accuracy in per cent; with five, it would always be 100."""
        hit = self.hits(train, train_labels, test, test_labels)
        scores = {"top1": 100 * float(hit[:, 0].float().mean())}
        has_more = int(train_labels.max()) >= 5
        return scores | ({"top5": 100 * float(hit.any(1).float().mean())} if has_more else {})

    def hits(self, train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor) -> Tensor:
        """Return whether each of the up to five classes with the most votes is correct, bool (n, min(5, classes)).

        A class without votes is never correct.
        """
        check_labelled(train, train_labels, test, test_labels)
        if self.k > len(train):
            raise ValueError(
                f"k: expected at most {len(train)} neighbours, the number of training samples, got {self.k}"
            )
        classes = int(train_labels.max()) + 1
        # The similarities, 50,000 × 10,000 for CIFAR, are reduced to votes in blocks of rows and never stored as a whole.
        # `queue` requires a positive, which is not used here.
        pairs = queue(test.float(), test.float(), train.float())
        (votes,) = pairs.reduce(_Votes(self, train_labels, classes, pairs))
        first = votes.topk(min(5, classes), dim=1)
        return (first.indices == test_labels[:, None]) & (first.values > 0)


@dataclass(frozen=True, eq=False)
class _Votes:
    """A statistic for `reduce`: the votes of each row's nearest columns, shape (b, classes)."""

    knn: KNN
    labels: Tensor
    classes: int
    pairs: Pairs
    logit = None

    def __call__(self, block: Block) -> Tensor:
        nearest = block.similarity.topk(self.knn.k, dim=1)
        if self.knn.weights == "softmax":
            # softmax instead of exp cannot overflow, and a common factor in a row does not change its ranking.
            weight = (nearest.values / self.knn.temperature).softmax(1)
        elif self.knn.weights == "uniform":
            weight = torch.ones_like(nearest.values)
        else:
            # The distance is computed from the difference of vectors, since 2 - 2s cannot distinguish near duplicates. A test
            # image that is also in the training set has distance 0.
            squared = squared_distances(self.pairs.anchor[block.rows], self.pairs.pool[nearest.indices])
            weight = squared.clamp(min=1e-12).rsqrt()
        votes = weight.new_zeros(len(weight), self.classes)
        return votes.scatter_add_(1, self.labels[nearest.indices], weight)

    def backward(self, block: Block, value: Tensor, gradient: Tensor) -> Gradient:
        """Return no gradient: votes are piecewise constant, and features are frozen."""
        return None, None
