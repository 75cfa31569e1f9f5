"""Long tails: how many images of each class stay, exactly as the papers' code counts them."""

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
    """⌊n_max · factor^{-c/(C-1)}⌋ (Cao et al.; DySTreSS, Tables 6 and 7, with n_max = 5000 or 500).

    >>> sum(exponential(10, 5000)), sum(exponential(100, 500))
    (12406, 10847)
    """
    if classes < 2:
        raise ValueError(f"classes: expected at least two, got {classes}")
    # The tolerance keeps 5000 · 0.01 at 50: in binary it is a little less.
    return [math.floor(largest * (1 / factor) ** (c / (classes - 1)) + 1e-9) for c in range(classes)]


def cacr_linear(classes: int, each: int) -> list[int]:
    """Ten groups of classes keep 1/10, 2/10, … of their images (CACR's code).

    >>> cacr_linear(10, 5000)[:3], sum(cacr_linear(10, 5000)), sum(cacr_linear(100, 500))
    ([500, 1000, 1500], 27500, 27500)
    """
    return [math.floor(_group(c, classes) / 10 * each + 1e-9) for c in range(classes)]


def cacr_exponential(classes: int, each: int) -> list[int]:
    """Ten groups of classes keep e^{-9}, e^{-8}, … 1 of their images; the smallest may disappear (CACR's code).

    >>> cacr_exponential(10, 5000)[:5], sum(cacr_exponential(10, 5000)), sum(cacr_exponential(100, 500))
    ([0, 1, 4, 12, 33], 7904, 7870)
    """
    return [math.floor(math.exp(_group(c, classes) - 10) * each + 1e-9) for c in range(classes)]


def pareto(classes: int = 1000, *, k: float = 558.217, largest: int = 1280, smallest: int = 5) -> list[int]:
    """Lomax(6) quantiles, as the published ImageNet-LT list has them, largest class first.

    >>> counts = pareto()
    >>> sum(counts), max(counts), min(counts)
    (115846, 1280, 5)
    """
    ranks = ((r - 0.5) / classes for r in range(1, classes + 1))
    return [min(largest, math.floor(smallest + k * (u ** (-1 / 6) - 1))) for u in ranks]


def _group(c: int, classes: int) -> int:
    return c * 10 // classes + 1


def thin(images: Source, counts: list[int], *, seed: int = 0) -> Source:
    """Keep `counts[c]` images of each class c, chosen by the seed, in their order."""
    have = images.counts()
    if len(counts) != len(have):
        raise ValueError(f"counts: expected one for each of {len(have)} classes, got {len(counts)}")
    for c, (wanted, there) in enumerate(zip(counts, have, strict=True)):
        if wanted > there:
            raise ValueError(f"counts: class {c} has {there} images, {wanted} are wanted")
    assert images.labels is not None
    kept: list[Tensor] = []
    for c, wanted in enumerate(counts):
        places = (images.labels == c).nonzero()[:, 0]
        kept.append(places[permutation(len(places), seed, c)[:wanted]])
    return cast(Source, images.subset(torch.cat(kept).sort().values))


def by_rule(images: Source, rule: str, *, seed: int = 0) -> Source:
    """`exponential:100`, `cacr-linear` or `cacr-exponential` of the smallest class, or `index:FILE`, a published list.

    The file holds indices in the data set's own order, as .npy or as text.
    """
    name, _, number = rule.partition(":")
    if name == "index":
        return cast(Source, images.subset(_indices(Path(number), len(images))))
    have = images.counts()
    classes, each = len(have), min(have)
    if name == "exponential":
        try:
            factor = float(number or 100)
        except ValueError as error:
            raise ValueError(f"imbalance: expected {RULES}, got {rule!r}") from error
        if not factor >= 1:
            raise ValueError(
                f"imbalance: expected a ratio of at least 1 between largest and smallest class, got {rule!r}"
            )
        return thin(images, exponential(classes, each, factor), seed=seed)
    if rule in ("cacr-linear", "cacr-exponential"):
        return thin(images, (cacr_linear if rule == "cacr-linear" else cacr_exponential)(classes, each), seed=seed)
    raise ValueError(f"imbalance: expected {RULES}, got {rule!r}")


def _indices(path: Path, size: int) -> Tensor:
    import numpy as np

    if not path.is_file():
        raise ValueError(f"imbalance: {path} is not a file of indices")
    found = np.load(path, allow_pickle=False) if path.suffix == ".npy" else np.loadtxt(path, dtype=np.int64)
    index = torch.from_numpy(found.astype(np.int64)).flatten()
    if len(index) == 0 or int(index.min()) < 0 or int(index.max()) >= size:
        raise ValueError(f"imbalance: {path} must hold indices from 0 to {size - 1}")
    return index
