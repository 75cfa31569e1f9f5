"""Long-tailed data sets: the number of images kept per class, exactly as in the papers' code."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TypeVar, cast

import torch
from torch import Tensor

from contrapose.modalities.images.images import Images
from contrapose.modalities.images.stream import Files
from contrapose.randomness import permutation

RULES = "exponential:FACTOR, cacr-linear, cacr-exponential or index:FILE"
Source = TypeVar("Source", bound=Images | Files)


def exponential(classes: int, largest: int, factor: float = 100.0) -> list[int]:
    """Return ⌊n_max · factor^{-c/(C-1)}⌋ for each class c (Cao et al.; DySTreSS, Tables 6 and 7, n_max = 5000 or 500).

    >>> sum(exponential(10, 5000)), sum(exponential(100, 500))
    (12406, 10847)
    """
    if classes < 2:
        raise ValueError(f"classes: expected at least two, got {classes}")
    # The tolerance keeps 5000 · 0.01 at 50: in floating point the product is slightly less, and floor would give 49.
    return [math.floor(largest * (1 / factor) ** (c / (classes - 1)) + 1e-9) for c in range(classes)]


def cacr_linear(classes: int, each: int) -> list[int]:
    """Return the counts of ten groups of classes that keep 1/10, 2/10, … of their images (CACR's code).

    >>> cacr_linear(10, 5000)[:3], sum(cacr_linear(10, 5000)), sum(cacr_linear(100, 500))
    ([500, 1000, 1500], 27500, 27500)
    """
    return [math.floor(_group(c, classes) / 10 * each + 1e-9) for c in range(classes)]


def cacr_exponential(classes: int, each: int) -> list[int]:
    """Return the counts of ten groups of classes that keep e^{-9}, e^{-8}, …, 1 of their images (CACR's code).

    The smallest classes may become empty.

    >>> cacr_exponential(10, 5000)[:5], sum(cacr_exponential(10, 5000)), sum(cacr_exponential(100, 500))
    ([0, 1, 4, 12, 33], 7904, 7870)
    """
    return [math.floor(math.exp(_group(c, classes) - 10) * each + 1e-9) for c in range(classes)]


def pareto(classes: int = 1000, *, k: float = 558.217, largest: int = 1280, smallest: int = 5) -> list[int]:
    """Return quantiles of a Lomax(6) distribution, largest class first, which match the published ImageNet-LT list.

    >>> counts = pareto()
    >>> sum(counts), max(counts), min(counts)
    (115846, 1280, 5)
    """
    ranks = ((r - 0.5) / classes for r in range(1, classes + 1))
    return [min(largest, math.floor(smallest + k * (u ** (-1 / 6) - 1))) for u in ranks]


def _group(c: int, classes: int) -> int:
    """Return the group of class c, from 1 to 10."""
    return c * 10 // classes + 1


def thin(images: Source, counts: list[int], *, seed: int = 0) -> Source:
    """Keep a random sample of `counts[c]` images of each class c, in the original order."""
    available = images.counts()
    if len(counts) != len(available):
        raise ValueError(f"counts: expected one for each of {len(available)} classes, got {len(counts)}")
    for c, (wanted, size) in enumerate(zip(counts, available, strict=True)):
        if wanted > size:
            raise ValueError(f"counts: expected at most the {size} images of class {c}, got {wanted}")
    assert images.labels is not None
    kept: list[Tensor] = []
    for c, wanted in enumerate(counts):
        members = (images.labels == c).nonzero()[:, 0]
        # One permutation per class: a smaller count keeps a subset of the images that a larger one keeps.
        kept.append(members[permutation(len(members), seed, c)[:wanted]])
    return cast(Source, images.subset(torch.cat(kept).sort().values))


def by_rule(images: Source, rule: str, *, seed: int = 0) -> Source:
    """Thin out classes by `exponential:100`, `cacr-linear` or `cacr-exponential`, or keep the images of `index:FILE`.

    The file is a published list of indices into the data set, as .npy or as text.
    """
    name, _, argument = rule.partition(":")
    if name == "index":
        return cast(Source, images.subset(_indices(Path(argument), len(images))))
    available = images.counts()
    # The papers' data sets are balanced; of one that is not, the smallest class is the largest size all can have.
    classes, each = len(available), min(available)
    if name == "exponential":
        try:
            factor = float(argument or 100)
        except ValueError as error:
            raise ValueError(f"imbalance: expected {RULES}, got {rule!r}") from error
        if not factor >= 1:  # rejects NaN as well
            raise ValueError(
                f"imbalance: expected a ratio of at least 1 between largest and smallest class, got {rule!r}"
            )
        return thin(images, exponential(classes, each, factor), seed=seed)
    if rule in ("cacr-linear", "cacr-exponential"):
        return thin(images, (cacr_linear if rule == "cacr-linear" else cacr_exponential)(classes, each), seed=seed)
    raise ValueError(f"imbalance: expected {RULES}, got {rule!r}")


def _indices(path: Path, size: int) -> Tensor:
    """Read indices below `size` from a file."""
    import numpy as np

    if not path.is_file():
        raise ValueError(f"imbalance: expected a file of indices after 'index:', but {path} is not a file")
    array = np.load(path, allow_pickle=False) if path.suffix == ".npy" else np.loadtxt(path, dtype=np.int64)
    index = torch.from_numpy(array.astype(np.int64)).flatten()
    if len(index) == 0 or int(index.min()) < 0 or int(index.max()) >= size:
        actual = f"values from {int(index.min())} to {int(index.max())}" if len(index) else "none"
        raise ValueError(f"imbalance: expected indices from 0 to {size - 1} in {path}, got {actual}")
    return index
