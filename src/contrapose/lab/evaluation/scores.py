"""Scores of a classifier in per cent, by name: accuracy, mean accuracy per class, ROC-AUC and 11-point mAP.

A score is a function of logits (N, C) and labels: class numbers (N,), or 0 and 1 for each class (N, C) if an image can have
several classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType

import torch
from torch import Tensor

from contrapose.extras import install_command
from contrapose.validate import check_known


def score(name: str, logits: Tensor, labels: Tensor) -> float:
    """Return a score in per cent.

    name     a name in `METRICS`
    logits   outputs of a classifier, (N, C)
    labels   class numbers (N,); or 0 and 1 for each class, (N, C)
    """
    check_known("metric", name, METRICS)
    if labels.ndim == 2 and name != "map_11":
        raise ValueError(f"metric: {name} needs one class per image; for images with several classes use map_11")
    return 100 * float(METRICS[name](logits.double(), labels))


def _accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits.argmax(1) == labels).float().mean()


def _mean_per_class(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of the accuracies within each class; classes without test images are left out."""
    accuracies = _torchmetrics().multiclass_accuracy(logits, labels, num_classes=logits.shape[1], average="none")
    mean: Tensor = accuracies[labels.unique()].mean()
    return mean


def _roc_auc(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the area under the ROC curve; with more than two classes, the mean area of each class against the others.

    Classes without test images are left out.
    """
    if logits.shape[1] == 2:
        return _area(logits[:, 1] - logits[:, 0], labels)
    # The log-odds of a class rank like its probability, which is 0 or 1 for large logits.
    areas = [
        _area(logits[:, c] - _without_column(logits, c).logsumexp(1), labels == c) for c in labels.unique().tolist()
    ]
    return torch.stack(areas).mean()


def _area(values: Tensor, labels: Tensor) -> Tensor:
    if labels.min() == labels.max():
        raise ValueError("metric: roc_auc needs test images of at least two classes")
    area: Tensor = _torchmetrics().binary_auroc(_ranks(values), labels.long())
    return area


def _without_column(x: Tensor, column: int) -> Tensor:
    return torch.cat([x[:, :column], x[:, column + 1 :]], 1)


def _ranks(values: Tensor) -> Tensor:
    """Return values from 0 to 1 in the same order, equal for ties, because torchmetrics takes other values for logits."""
    ranks: Tensor = values.unique(return_inverse=True)[1].double() / len(values)
    return ranks


def _map_11(logits: Tensor, labels: Tensor) -> Tensor:
    """Return PASCAL VOC's average precision up to 2007: the mean over classes and over recalls 0, 0.1, …, 1.

    The precision at a recall is the highest precision at this or a greater recall. torchmetrics offers the precision-recall
    curve, but as a score only the area under it.
    """
    if labels.ndim == 1:
        labels = torch.nn.functional.one_hot(labels, logits.shape[1])
    averages = [logits.new_zeros(())] * (not labels.any())
    for c in labels.any(0).nonzero()[:, 0].tolist():  # a class without images has no recall
        precision, recall, _ = _torchmetrics().binary_precision_recall_curve(_ranks(logits[:, c]), labels[:, c])
        # The last point is no measurement: torchmetrics adds a precision of 1 at a recall of 0.
        precision, recall = precision[:-1], recall[:-1]
        # A tolerance, because a recall of 3/10 in float32 may be below 0.3.
        reached = [precision[recall >= step / 10 - 1e-6].max() for step in range(11)]
        averages.append(torch.stack(reached).mean().to(logits.dtype))
    return torch.stack(averages).mean()


def _torchmetrics() -> ModuleType:
    try:
        from torchmetrics.functional import classification
    except ImportError as error:
        raise ValueError(f"metric: all metrics but accuracy need: {install_command('transfer')}") from error
    module: ModuleType = classification
    return module


METRICS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "accuracy": _accuracy,
    "mean_per_class": _mean_per_class,
    "roc_auc": _roc_auc,
    "map_11": _map_11,
}
