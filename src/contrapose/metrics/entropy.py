"""How evenly repulsion is distributed over a batch (CACR)."""

from __future__ import annotations

import torch
from torch import Tensor

from contrapose.metrics.embeddings import all_pairs, unit_vectors
from contrapose.reduce import Expectation, LogSumExp, Scale
from contrapose.validate import check_number


def conditional_entropy(z: Tensor, *, t_neg: float = 2.0, batch: int | None = None) -> float:
    """Return H(X⁻|X) = mean_i -Σ_j π⁻_ij log π⁻_ij, π⁻_i = softmax_j(-t⁻‖z_i - z_j‖²), j ≠ i (Zheng et al., Eq. 8).

    The maximum is log(M - 1), reached when all vectors are equally far apart. With `batch`, return the mean over
    consecutive mini-batches of M vectors; an incomplete last batch is dropped, because its maximum would differ. Images
    from class folders are sorted by class: shuffle them first, or a batch holds a single class.

    z       unit vectors (n, d); others are normalised with a warning
    t_neg   t⁻ of the weights
    batch   M; default: all vectors at once

    >>> round(conditional_entropy(torch.eye(5)), 4)  # a simplex: log 4
    1.3863
    """
    check_number("t_neg", t_neg, least=0.0)
    z = unit_vectors("z", z, min_count=3)
    size = len(z) if batch is None else batch
    check_number("batch", size, least=3)
    size = int(size)
    if size > len(z):
        raise ValueError(f"batch: expected at most {len(z)}, the number of embeddings, got {size}")
    # -t⁻‖z_i - z_j‖² = 2t⁻s - 2t⁻ for unit vectors; softmax ignores the constant.
    logit = Scale(2 * t_neg)
    entropies = []
    for part in z[: len(z) // size * size].split(size):
        # -Σ π log π = log Σ_j e^{φ_j} - Σ_j π_j φ_j: two reductions of each row, no matrix of π.
        log_total, mean_similarity = all_pairs(part).reduce(LogSumExp(logit), Expectation(logit))
        entropies.append((log_total - 2 * t_neg * mean_similarity).double().mean())
    return float(torch.stack(entropies).mean())
