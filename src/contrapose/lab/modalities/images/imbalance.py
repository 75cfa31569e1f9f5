"""Long-tailed data sets: the number of images to keep per class, exactly as in the papers' code."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TypeVar, cast

import torch
from torch import Tensor

from contrapose.lab.modalities.images.images import Images
from contrapose.lab.modalities.images.stream import Files
from contrapose.lab.modalities.input_files import read_text
from contrapose.randomness import permutation, sample_classes

RULES = "exponential:FACTOR, kukleva:SPLIT, pareto, pareto:IMAGES, uniform:IMAGES, cacr-linear, cacr-exponential or index:FILE"
_RULE = re.compile(
    r"exponential(:(?P<factor>\d+(\.\d+)?(e\d+)?))?|kukleva:\d+|pareto|(pareto|uniform):[1-9]\d*|cacr-(linear|exponential)|"
    r"index:.+"
)
Source = TypeVar("Source", bound=Images | Files)
# Keys of random numbers, fixed instead of the run's seed: runs with different seeds are trained on the same images.
_PARETO_ORDER, _UNIFORM_ORDER, _KUKLEVA_ORDER, _KUKLEVA_PART = 1, 2, 3, 4


def check_rule(rule: str) -> None:
    """Refuse an unknown rule. Loading the images checks whether there are enough for the rule."""
    found = _RULE.fullmatch(rule)
    if found is None:
        raise ValueError(f"imbalance: expected {RULES}, got {rule!r}")
    _factor(rule, found["factor"] or "")


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
    """Return the counts per class if ten groups of classes keep 1/10, 2/10, … of their images (CACR's code).

    >>> cacr_linear(10, 5000)[:3], sum(cacr_linear(10, 5000)), sum(cacr_linear(100, 500))
    ([500, 1000, 1500], 27500, 27500)
    """
    return [math.floor(_group(c, classes) / 10 * each + 1e-9) for c in range(classes)]


def cacr_exponential(classes: int, each: int) -> list[int]:
    """Return the counts per class if ten groups of classes keep e^{-9}, e^{-8}, …, 1 of their images (CACR's code).

    The smallest classes may become empty.

    >>> cacr_exponential(10, 5000)[:5], sum(cacr_exponential(10, 5000)), sum(cacr_exponential(100, 500))
    ([0, 1, 4, 12, 33], 7904, 7870)
    """
    return [math.floor(math.exp(_group(c, classes) - 10) * each + 1e-9) for c in range(classes)]


def pareto(classes: int = 1000, *, k: float = 558.217, largest: int = 1280, smallest: int = 5) -> list[int]:
    """Return quantiles of a Lomax(6) distribution, largest class first, with the sum, maximum and minimum of ImageNet-LT.

    >>> counts = pareto()
    >>> sum(counts), max(counts), min(counts)
    (115846, 1280, 5)
    """
    ranks = ((r - 0.5) / classes for r in range(1, classes + 1))
    return [min(largest, math.floor(smallest + k * (u ** (-1 / 6) - 1))) for u in ranks]


def pareto_of(total: int, classes: int) -> list[int]:
    """Return the counts of a distribution like `pareto` with `total` images.

    >>> pareto_of(115846, 1000) == pareto(), sum(pareto_of(12205, 100))
    (True, 12205)
    """
    fewest, most = 5 * classes, 1280 * classes
    if not fewest <= total <= most:
        raise ValueError(
            f"imbalance: pareto takes {fewest:,} to {most:,} images of {classes} classes, 5 to 1280 of each, got {total:,}"
        )
    low, high = 0.0, 16_000.0 * classes  # at the upper end every class has 1280 images
    while (middle := (low + high) / 2) not in (low, high):  # the total grows with k, since every count does
        low, high = (middle, high) if sum(pareto(classes, k=middle)) < total else (low, middle)
    return pareto(classes, k=high)


def uniform(total: int, classes: int) -> list[int]:
    """Return equal counts that sum to `total`; if `total` is not divisible, the first classes have one image more.

    >>> uniform(12406, 10)
    [1241, 1241, 1241, 1241, 1241, 1241, 1240, 1240, 1240, 1240]
    """
    if total < classes:
        raise ValueError(f"imbalance: uniform takes at least one image of each of {classes} classes, got {total}")
    each, more = divmod(total, classes)
    return [each + 1] * more + [each] * (classes - more)


def _group(c: int, classes: int) -> int:
    """Return the group, from 1 to 10, that class c is in."""
    return c * 10 // classes + 1


def thin(images: Source, counts: list[int], *, seed: int = 0) -> Source:
    """Keep a random sample of `counts[c]` images from each class c, in the original order."""
    available = images.counts()
    if len(counts) != len(available):
        raise ValueError(f"counts: expected one for each of {len(available)} classes, got {len(counts)}")
    for c, (wanted, size) in enumerate(zip(counts, available, strict=True)):
        if wanted > size:
            raise ValueError(f"counts: expected at most the {size} images of class {c}, got {wanted}")
    assert images.labels is not None
    return cast(Source, images.subset(sample_classes(images.labels, counts, seed).sort().values))


def by_rule(images: Source, rule: str) -> Source:
    """Thin out the classes by one of `RULES`; a rule always keeps the same images.

    exponential:100   the largest class has 100 times as many images as the smallest, in the order of the labels
    kukleva:0         the same on 9/10 of the images; each number gives another order of the classes (Kukleva et al.)
    pareto            a Pareto distribution from 1280 to 5 images, as in ImageNet-LT; pareto:12205 with 12,205 in total
    uniform:12406     12,406 images, the same number in each class
    cacr-linear       ten groups of classes keep 1/10, 2/10, … of their images; cacr-exponential e^-9, e^-8, …
    index:FILE        a published list: indices into the data set, as .npy or as text, or paths as in ImageNet-LT's lists
    """
    name, _, argument = rule.partition(":")
    if name == "index":
        return cast(Source, images.subset(_indices(Path(argument), images)))
    if name == "kukleva":
        return _kukleva(images, _whole_number(rule, argument))
    return thin(images, _counts(rule, images.counts()))


def _kukleva(images: Source, split: int) -> Source:
    """Thin out 9/10 of the images; the last tenth is Kukleva et al.'s validation split, which is not used here."""
    available = images.counts()
    part = thin(images, [min(available) * 9 // 10] * len(available), seed=_KUKLEVA_PART)
    sizes = exponential(len(available), min(part.counts()))
    return thin(part, _assign(sizes, part.counts(), _KUKLEVA_ORDER, split), seed=split)


def _counts(rule: str, available: list[int]) -> list[int]:
    """Return the number of images that a rule keeps in each class, given the numbers that are available."""
    name, _, argument = rule.partition(":")
    # The papers' data sets are balanced. For other data, the smallest class limits the size that all classes can have.
    classes, each = len(available), min(available)
    if name == "exponential":
        return exponential(classes, each, _factor(rule, argument))
    if rule in ("cacr-linear", "cacr-exponential"):
        return (cacr_linear if rule == "cacr-linear" else cacr_exponential)(classes, each)
    if rule == "pareto":
        return _assign(pareto(classes), available, _PARETO_ORDER)
    if name == "pareto":
        return _assign(pareto_of(_whole_number(rule, argument), classes), available, _PARETO_ORDER)
    if name == "uniform":
        return _assign(uniform(_whole_number(rule, argument), classes), available, _UNIFORM_ORDER)
    raise ValueError(f"imbalance: expected {RULES}, got {rule!r}")


def _assign(sizes: list[int], available: list[int], *keys: int) -> list[int]:
    """Assign the sizes, largest first, to the classes in a random but fixed order; return the size of each class.

    A class with too few images for a size gets a later, smaller size: ImageNet's classes have 732 to 1300 images.
    """
    waiting, counts = permutation(len(available), *keys).tolist(), [0] * len(available)
    for size in sizes:
        chosen = next((c for c in waiting if available[c] >= size), None)
        if chosen is None:
            largest = max(available[c] for c in waiting)
            raise ValueError(
                f"imbalance: expected {size} images of one more class, but the classes that are left have at most {largest}"
            )
        waiting.remove(chosen)
        counts[chosen] = size
    return counts


def _factor(rule: str, argument: str) -> float:
    try:
        factor = float(argument or 100)
    except ValueError as error:
        raise ValueError(f"imbalance: expected {RULES}, got {rule!r}") from error
    if not factor >= 1:  # rejects NaN as well
        raise ValueError(f"imbalance: expected a ratio of at least 1 between largest and smallest class, got {rule!r}")
    return factor


def _whole_number(rule: str, argument: str) -> int:
    if not argument.isdecimal():
        raise ValueError(f"imbalance: expected {RULES}, got {rule!r}")
    return int(argument)


def _indices(path: Path, images: Images | Files) -> Tensor:
    """Read indices of images from a file: numbers, or one path per line, as in the lists of ImageNet-LT ("PATH LABEL")."""
    if not path.is_file():
        raise ValueError(f"imbalance: expected a file of indices after 'index:', but {path} is not a file")
    if path.suffix == ".npy":
        index = _read_array(path)
    else:
        words = [line.split()[0] for line in read_text(path, "imbalance").splitlines() if line.strip()]
        is_number = all(word.lstrip("-").isdigit() for word in words)
        index = _as_indices(path, words) if is_number else _indices_of_files(path, words, images)
    if len(index) == 0 or int(index.min()) < 0 or int(index.max()) >= len(images):
        actual = f"values from {int(index.min())} to {int(index.max())}" if len(index) else "none"
        raise ValueError(f"imbalance: expected indices from 0 to {len(images) - 1} in {path}, got {actual}")
    return index


def _read_array(path: Path) -> Tensor:
    """Return the whole numbers in an .npy file; refuse other types, such as a mask, which is no list of indices."""
    import numpy as np

    try:
        # Mapped, because a short file may declare a huge array, for which numpy would reserve memory.
        array = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # numpy raises errors of many types for a damaged file
        why = " ".join(str(error).split())[:200]
        raise ValueError(f"imbalance: {path} cannot be read as an array of indices: {why}") from error
    if array.dtype.kind not in "iu":
        raise ValueError(f"imbalance: expected an array of whole numbers in {path}, got {str(array.dtype)[:40]}")
    return torch.from_numpy(array.astype(np.int64)).flatten()


def _as_indices(path: Path, words: list[str]) -> Tensor:
    """Return the numbers in a file of text."""
    try:
        return torch.tensor([int(word) for word in words])
    except (ValueError, RuntimeError, OverflowError) as error:  # thousands of digits, or digits such as ²
        why = " ".join(str(error).split())[:200]
        raise ValueError(f"imbalance: expected indices in {path}, got a number that cannot be read: {why}") from error


def _indices_of_files(path: Path, names: list[str], images: Images | Files) -> Tensor:
    """Return the indices of files, by folder and name (n01440764/n01440764_10026.JPEG): a label in the list is the folder's."""
    known = {f"{file.parent.name}/{file.name}": index for index, file in enumerate(images.paths)}
    keys = ["/".join(name.split("/")[-2:]) for name in names]
    missing = [key for key in keys if key not in known]
    if missing:
        raise ValueError(
            f"imbalance: {len(missing):,} of the {len(keys):,} files in {path} are not among the training images, such as "
            f"{missing[0]}; expected FOLDER/NAME of images in --data, or indices"
        )
    return torch.tensor([known[key] for key in keys])
