"""A network's outputs for a whole data set, and checks of these features before classification."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from contrapose.validate import NotFinite, check_embeddings, check_index, check_values


@torch.no_grad()
def features(network: Callable[[Tensor], Tensor], batches: Iterable[Tensor]) -> Tensor:
    """Return the network's output for all batches of evaluation inputs, (N, width) in float32.

    network   function of a batch that returns features (B, width)
    batches   evaluation inputs (B, …)
    """
    return torch.cat([network(batch).float() for batch in batches])


def check_labelled(train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor) -> None:
    """Check that features (n, d) of training and test images are finite and have a class number each."""
    check_part("train", train, train_labels)
    check_part("test", test, test_labels)


def check_part(name: str, x: Tensor, labels: Tensor) -> None:
    """Check that the features (n, d) called `name` in messages are finite and have a class number each."""
    check_embeddings(name, x, 2, shapes={2: "(n, d)"})
    check_index(f"{name}_labels", labels, len(x))
    smallest, finite = labels.min(), x.isfinite().all(1)
    check_values(smallest >= 0, lambda: f"{name}_labels: expected class numbers from 0 on, got {int(smallest)}")
    # The nearest neighbours of a NaN are arbitrary, yet would give an accuracy.
    if not bool(finite.all()):
        raise NotFinite(f"{name}: features of sample {int((~finite).nonzero()[0])} are not finite")
