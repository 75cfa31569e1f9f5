"""Similarities to the positive, to the nearest and to everything."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from contrapose.metrics.embeddings import classes_of, units
from contrapose.pairs import bank
from contrapose.reduce import Nearest
from contrapose.validate import check_number, check_same_shape


@dataclass(frozen=True)
class Separation:
    """Mean similarities of anchors."""

    positive: float
    nearest: tuple[float, ...]  # of the nearest negative, the second nearest, …

    @property
    def gap(self) -> float:
        """Positive less nearest negative."""
        return self.positive - self.nearest[0]


def local_separation(z: Tensor, rows: Tensor, index: Tensor | None = None, *, nearest: int = 10) -> Separation:
    """The similarity of each view z_i to its image's own row of a bank, and to the nearest other rows (Wang & Liu, §5.2).

    `index` says which row is whose; without it, z and rows are the same images in the same order.
    """
    z, rows = units("z", z, least=1), units("rows", rows)
    if index is None:
        check_same_shape("rows", rows, "z", z)
        index = torch.arange(len(z), device=z.device)
    check_number("nearest", nearest, least=1)
    nearest = int(nearest)
    if nearest >= len(rows):
        raise ValueError(f"nearest: {nearest} neighbours are more than the {len(rows) - 1} other rows of the bank")
    pairs = bank(z, index, rows)
    (found,) = pairs.reduce(Nearest(nearest))
    return Separation(float(pairs.positives().double().mean()), tuple(found.double().mean(0).tolist()))


@dataclass(frozen=True)
class Histograms:
    """Densities of cosine similarity on [-1, 1], and their means."""

    edges: Tensor  # (bins + 1,)
    true_positive: Tensor  # (bins,): two views of an image
    false_negative: Tensor  # different images of one class
    true_negative: Tensor  # images of different classes
    means: tuple[float, float, float]  # in that order


def similarity_histograms(z1: Tensor, z2: Tensor, labels: Tensor | None, *, bins: int = 100) -> Histograms:
    """Cosine similarity of two views of an image, of images of one class, and of different classes (DySTreSS, Fig. 1).

    z1 and z2 are two views of the same images; every z1 meets every z2.
    """
    check_number("bins", bins, least=1)
    a, b = units("z1", z1), units("z2", z2)
    check_same_shape("z2", b, "z1", a)
    place, count = classes_of("labels", labels, len(a), why="telling false negatives from true ones")
    if int(count.max()) < 2:
        raise ValueError("labels: there are no false negatives, since every class has one image")
    order = place.argsort(stable=True)  # then a class is a run of columns
    a, b = a[order], b[order]
    everything, same, own = _Counted(bins), _Counted(bins), _Counted(bins)
    ends = count.cumsum(0).tolist()
    for first, end in zip([0, *ends[:-1]], ends, strict=True):
        for start in range(first, end, step := max(1, 2**22 // len(b))):
            stop = min(start + step, end)
            similarity = a[start:stop] @ b.T
            everything += _Counted.of(similarity, bins)
            same += _Counted.of(similarity[:, first:end], bins)
            own += _Counted.of(similarity[:, start:stop].diagonal(), bins)
    parts = (own, same - own, everything - same)
    densities = [(part.counts / part.counts.sum() * bins / 2).cpu() for part in parts]
    edges = torch.linspace(-1, 1, bins + 1, dtype=torch.float64)
    first, second, third = (part.total / float(part.counts.sum()) for part in parts)
    return Histograms(edges, densities[0], densities[1], densities[2], (first, second, third))


class _Counted:
    """How many similarities fall in each bin, and their sum."""

    def __init__(self, bins: int, counts: Tensor | float = 0.0, total: float = 0.0) -> None:
        self.bins, self.total = bins, total
        self.counts = counts if isinstance(counts, Tensor) else torch.zeros(bins, dtype=torch.float64)

    @classmethod
    def of(cls, similarity: Tensor, bins: int) -> _Counted:
        counts = torch.histc(similarity.clamp(-1, 1), bins, -1, 1)
        return cls(bins, counts.double().cpu(), float(similarity.double().sum()))

    def __add__(self, other: _Counted) -> _Counted:
        return _Counted(self.bins, self.counts + other.counts, self.total + other.total)

    def __sub__(self, other: _Counted) -> _Counted:
        return _Counted(self.bins, self.counts - other.counts, self.total - other.total)
