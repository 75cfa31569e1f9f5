"""How evenly repulsion falls on a batch (CACR)."""

from __future__ import annotations

import torch
from torch import Tensor

from contrapose.metrics.embeddings import among, units
from contrapose.reduce import Expectation, LogSumExp, Scale
from contrapose.validate import check_number


def conditional_entropy(z: Tensor, *, t_neg: float = 2.0, batch: int | None = None) -> float:
    """H(X⁻|X) = mean_i -Σ_j π⁻_ij log π⁻_ij with π⁻_i = softmax_j(-t⁻‖z_i - z_j‖²), j ≠ i (Zheng et al., Eq. 8).

    At most log(M - 1), where all are equally far. With `batch` M the mean over mini-batches of M, in order; a rest that
    makes no whole batch is left out.

    >>> round(conditional_entropy(torch.eye(5)), 4)  # a simplex: log 4
    1.3863
    """
    check_number("t_neg", t_neg, least=0.0)
    z = units("z", z, least=3)
    size = len(z) if batch is None else batch
    check_number("batch", size, least=3)
    size = int(size)
    if size > len(z):
        raise ValueError(f"batch: {size} is more than the {len(z)} embeddings there are")
    logit = Scale(2 * t_neg)  # -t⁻(2 - 2s), less a constant
    entropies = []
    for part in z[: len(z) // size * size].split(size):
        total, mean = among(part).reduce(LogSumExp(logit), Expectation(logit))
        entropies.append((total - 2 * t_neg * mean).double().mean())
    return float(torch.stack(entropies).mean())
