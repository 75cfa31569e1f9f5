"""Logistic regression by SentEval's protocol: Adam on mini-batches, with early stopping by the accuracy on held-out rows.

The protocol fits hundreds of small classifiers to the same features. All classifiers are trained together, as one tensor of
weights. Adam treats each weight separately, so the result is the same as training one classifier after the other, with one
exception: a fold with fewer training rows than others may take one more step in a pass, on the penalty only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy


@dataclass(frozen=True)
class Classifiers:
    """Fitted classifiers of F folds and L penalties: weights (F, L, d + 1, C), bias last, and held-out accuracies (F, L)."""

    weights: Tensor
    accuracy: Tensor

    def select(self, penalty: Tensor) -> Tensor:
        """Return the weights (F, 1, d + 1, C) of one penalty per fold, given by index (F,)."""
        return self.weights[torch.arange(len(penalty)), penalty][:, None]


@dataclass(frozen=True)
class LogisticRegression:
    """The settings with which SentEval computes the papers' tables."""

    batch_size: int = 64
    passes: int = 4  # passes over the training rows between two evaluations (SentEval's epoch_size)
    # Training stops at the evaluation after this many without a better accuracy. As in SentEval (tenacity), they are counted from
    # the beginning and not since the best one.
    patience: int = 5
    max_evaluations: int = 51  # as in SentEval: until more than 200 passes are done
    lr: float = 1e-3

    def fit(
        self, features: Tensor, labels: Tensor, *, train: Tensor, held_out: Tensor, penalty: Tensor, seed: int
    ) -> Classifiers:
        """Fit one classifier per fold and penalty, and keep the weights with the best held-out accuracy.

        features   (n, d)
        labels     class numbers (n,)
        train      rows that each fold trains on, bool (F, n)
        held_out   rows whose accuracy decides when each fold stops, bool (F, n)
        penalty    coefficients of the squared weights, (F, L)
        """
        classes = int(labels.max()) + 1
        shape = (len(train), penalty.shape[1], features.shape[1] + 1, classes)
        # The problem is convex, so zeros are as good an initialisation as random values.
        weights = features.new_zeros(shape, requires_grad=True)
        optimiser = torch.optim.Adam([weights], lr=self.lr)
        # A CPU generator makes the order the same on every device.
        generator = torch.Generator().manual_seed(seed)
        best = Classifiers(torch.zeros_like(weights), torch.full(shape[:2], -1.0, device=features.device))
        waited = torch.zeros(shape[:2], dtype=torch.long, device=features.device)
        for _ in range(self.max_evaluations):
            for _ in range(self.passes):
                self._train_pass(weights, optimiser, features, labels, train, penalty, generator)
            accuracy = held_out_accuracy(weights.detach(), features, labels, held_out)
            better = (accuracy > best.accuracy) & (waited <= self.patience)  # a stopped classifier is not changed
            waited += ~better
            best = Classifiers(
                torch.where(better[..., None, None], weights.detach(), best.weights),
                torch.where(better, accuracy, best.accuracy),
            )
            if bool((waited > self.patience).all()):
                break
        return best

    def _train_pass(
        self,
        weights: Tensor,
        optimiser: torch.optim.Optimizer,
        features: Tensor,
        labels: Tensor,
        train: Tensor,
        penalty: Tensor,
        generator: torch.Generator,
    ) -> None:
        """Take one pass over the training rows of each fold, each in its own order."""
        for rows in _random_order(train, generator).split(self.batch_size, dim=1):
            loss = _losses(weights, features[rows], labels[rows], train.gather(1, rows))
            # Half the sum of squares, bias included: its gradient equals Adam's weight_decay.
            penalties = penalty * weights.square().sum((2, 3)) / 2
            optimiser.zero_grad()
            (loss + penalties).sum().backward()
            optimiser.step()


def held_out_accuracy(weights: Tensor, features: Tensor, labels: Tensor, held_out: Tensor) -> Tensor:
    """Return the accuracy (F, L) of classifiers (F, L, d + 1, C) on each fold's rows, bool (F, n)."""
    accuracies = []
    for fold, rows in zip(weights, held_out, strict=True):
        logits = features[rows] @ fold[:, :-1] + fold[:, -1:]
        accuracies.append((logits.argmax(-1) == labels[rows]).double().mean(-1))
    return torch.stack(accuracies).float()


def _losses(weights: Tensor, batch: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
    """Return the mean cross-entropy (F, L) of each classifier on its fold's batch (F, b, d), over the valid rows."""
    folds, penalties, _, classes = weights.shape
    # All penalties share a fold's batch, so that the batch is gathered once: (F, b, d) · (F, d, L · C).
    flat = weights.transpose(1, 2).flatten(2)
    logits = torch.baddbmm(flat[:, -1:], batch, flat[:, :-1]).unflatten(2, (penalties, classes))
    each = cross_entropy(
        logits.flatten(0, 2), labels[..., None].expand(-1, -1, penalties).flatten(), reduction="none"
    ).view(folds, -1, penalties)
    # The last batch of a fold with fewer rows than the others may have no valid row.
    return (each * valid[..., None]).sum(1) / valid.sum(1, keepdim=True).clamp(min=1)


def _random_order(train: Tensor, generator: torch.Generator) -> Tensor:
    """Return a random order of each fold's training rows, (F, largest number of training rows).

    The order for a fold with fewer rows ends with rows that are not its own; `train` marks its own rows.
    """
    keys = torch.rand(train.shape, generator=generator).to(train.device)
    return keys.masked_fill(~train, 2.0).argsort(1)[:, : int(train.sum(1).max())]
