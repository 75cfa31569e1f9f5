"""Similarity of embeddings to their positive, to their nearest neighbours and to all other embeddings."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from contrapose.metrics.embeddings import class_indices, unit_vectors
from contrapose.pairs import bank
from contrapose.reduce import Nearest
from contrapose.validate import check_number, check_same_shape


@dataclass(frozen=True)
class Separation:
    """Mean similarities of all anchors to their positive and to their nearest negatives."""

    positive: float  # to the anchor's own image
    nearest: tuple[float, ...]  # to the nearest negative, the second nearest, …

    @property
    def gap(self) -> float:
        """The similarity of the positive minus that of the nearest negative."""
        return self.positive - self.nearest[0]


def local_separation(z: Tensor, rows: Tensor, index: Tensor | None = None, *, nearest: int = 10) -> Separation:
    """Return the mean similarity of views z_i to their own image's row in a bank, and to the nearest other rows.

    This is the local separation of Wang & Liu, Sec. 5.2. `index` (n,) holds the bank row of each view's image; without
    `index`, row i of `z` and row i of `rows` belong to the same image.

    z         embeddings (n, d)
    rows      bank (N, d)
    index     bank row of each view's image, (n,)
    nearest   number of nearest rows
    """
    z, rows = unit_vectors("z", z, min_count=1), unit_vectors("rows", rows)
    if index is None:
        check_same_shape("rows", rows, "z", z)
        index = torch.arange(len(z), device=z.device)
    check_number("nearest", nearest, least=1)
    nearest = int(nearest)
    if nearest >= len(rows):
        raise ValueError(f"nearest: expected at most {len(rows) - 1}, the number of other rows, got {nearest}")
    pairs = bank(z, index, rows)
    (nearest_similarity,) = pairs.reduce(Nearest(nearest))
    return Separation(float(pairs.positives().double().mean()), tuple(nearest_similarity.double().mean(0).tolist()))


@dataclass(frozen=True)
class Histograms:
    """Densities of cosine similarity on [-1, 1], and their means."""

    edges: Tensor  # (bins + 1,)
    true_positive: Tensor  # (bins,): two views of the same image
    false_negative: Tensor  # (bins,): different images of the same class
    true_negative: Tensor  # (bins,): images of different classes
    means: tuple[float, float, float]  # in the order above


def similarity_histograms(z1: Tensor, z2: Tensor, labels: Tensor | None, *, bins: int = 100) -> Histograms:
    """Return histograms of cosine similarity for true positives, false negatives and true negatives (DySTreSS, Fig. 1).

    Row i of z1 and of z2 are two views of the same image. Every row of z1 is compared with every row of z2.

    z1, z2   embeddings (n, d) of two views
    labels   classes (n,)
    bins     number of bins on [-1, 1]
    """
    check_number("bins", bins, least=1)
    a, b = unit_vectors("z1", z1), unit_vectors("z2", z2)
    check_same_shape("z2", b, "z1", a)
    class_index, class_size = class_indices(
        "labels", labels, len(a), purpose="telling false negatives from true negatives"
    )
    if int(class_size.max()) < 2:
        raise ValueError("labels: expected a class with at least two images, but every class has only one")
    # After sorting by class, the columns of a class are contiguous: a slice replaces a mask over the whole block.
    order = class_index.argsort(stable=True)
    a, b = a[order], b[order]
    all_counts, class_counts, image_counts = (_SimilarityCounts(bins) for _ in range(3))
    class_ends = class_size.cumsum(0).tolist()
    for class_start, class_end in zip([0, *class_ends[:-1]], class_ends, strict=True):
        # Blocks of at most 4 M similarities, 16 MiB in float32.
        for start in range(class_start, class_end, step := max(1, 2**22 // len(b))):
            stop = min(start + step, class_end)
            similarity = a[start:stop] @ b.T
            all_counts += _SimilarityCounts.of(similarity, bins)
            class_counts += _SimilarityCounts.of(similarity[:, class_start:class_end], bins)
            image_counts += _SimilarityCounts.of(similarity[:, start:stop].diagonal(), bins)
    # The three sets are nested, so differences of counts give the disjoint groups.
    groups = (image_counts, class_counts - image_counts, all_counts - class_counts)
    true_positive, false_negative, true_negative = (
        (group.counts / group.counts.sum() * bins / 2).cpu() for group in groups
    )
    positive_mean, false_mean, true_mean = (group.total / float(group.counts.sum()) for group in groups)
    return Histograms(
        edges=torch.linspace(-1, 1, bins + 1, dtype=torch.float64),
        true_positive=true_positive,
        false_negative=false_negative,
        true_negative=true_negative,
        means=(positive_mean, false_mean, true_mean),
    )


class _SimilarityCounts:
    """The number of similarities in each bin, and the sum of all similarities."""

    def __init__(self, bins: int, counts: Tensor | None = None, total: float = 0.0) -> None:
        self.bins, self.total = bins, total
        # float64 counts exactly up to 2⁵³; 50,000² pairs exceed float32's 2²⁴.
        self.counts = torch.zeros(bins, dtype=torch.float64) if counts is None else counts

    @classmethod
    def of(cls, similarity: Tensor, bins: int) -> _SimilarityCounts:
        # histc drops values outside its range, and rounding puts some similarities just above 1.
        counts = torch.histc(similarity.clamp(-1, 1), bins, -1, 1)
        return cls(bins, counts.double().cpu(), float(similarity.double().sum()))

    def __add__(self, other: _SimilarityCounts) -> _SimilarityCounts:
        return _SimilarityCounts(self.bins, self.counts + other.counts, self.total + other.total)

    def __sub__(self, other: _SimilarityCounts) -> _SimilarityCounts:
        return _SimilarityCounts(self.bins, self.counts - other.counts, self.total - other.total)
