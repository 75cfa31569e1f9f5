"""The similarity of each anchor's k-th hardest negative, by counting: sorting would need the matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from contrapose.reduce.block import Selection
from contrapose.reduce.exponent import Exponent
from contrapose.reduce.kernels import BAND, count_kernel
from contrapose.reduce.launch import COUNT, Launch
from contrapose.reduce.reduction import Reduction, ids_of, part


def thresholds(z: Tensor, p: Tensor, selection: Selection, precision: str) -> tuple[Tensor, Tensor] | None:
    """Return each anchor's similarity to its k-th hardest negative, and the weight of ties there: weights sum to k.

    Sorting would need the matrix. Instead each pass counts the negatives above eight thresholds and keeps the interval
    that holds the k-th: after eight passes it is as narrow as float32 resolves.
    """
    if selection.hardest is None:
        return None
    k = selection.kept_counts(torch.int64)
    reduction = Reduction(Exponent(), selection, precision, None)
    low = torch.full((len(z),), -1.01, device=z.device)  # products of rounded unit vectors may exceed ±1 a little
    width = 2.02
    for _ in range(8):
        width /= 8
        reached = _counts_above(reduction, z, p, low, width) >= k[:, None]
        low = low + width * (reached.sum(1) - 1).clamp(min=0)
    counts = _counts_above(reduction, z, p, low - BAND.value, 2 * BAND.value)
    above, ties = counts[:, 1], counts[:, 0] - counts[:, 1]
    return low, ((k - above) / ties.clamp(min=1)).clamp(0, 1).float()


def _counts_above(reduction: Reduction, z: Tensor, p: Tensor, start: Tensor, step: float) -> Tensor:
    """Return (n, 8): the number of negatives at or above start + k · step, k = 0…7."""
    counts = torch.empty((len(z), 8), dtype=torch.int64, device=z.device)
    for rows, columns in reduction.selection.runs:
        launch = Launch(COUNT, part(z, rows), part(p, columns), z.shape[1], reduction.precision)
        parts = counts.new_empty((launch.splits, launch.n, 8), dtype=torch.int32)
        launch(count_kernel, *ids_of(reduction, rows, columns), part(start, rows), parts, numbers=(step,))
        counts[rows] = parts.sum(0)
    return counts
