"""Decide which losses give a more accurate encoder, given the variation between seeds and between test images.

The difference between two accuracies has two sources of error: the random seed, which gives another encoder, and the choice
of test images. Every encoder is tested on the same images, so the second error is estimated from the differences per image.
The two variances are added. All pairs of losses are tested together: the chance of any wrong statement is at most 5 %.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import torch
from torch import Tensor

LEVEL = 0.05  # chance of a wrong statement about any pair of losses
_MAX_NAMED_PAIRS = 3  # more pairs than this are not listed one by one


@dataclass(frozen=True)
class Difference:
    """Two losses, the more accurate one first, their difference in points, and the largest difference explained by chance."""

    first: str
    second: str
    points: float
    chance: float

    @property
    def clear(self) -> bool:
        """Whether the first loss is ahead of the second by more than chance."""
        return self.points > self.chance


def differences(hits: Mapping[str, Tensor], *, level: float = LEVEL, reference: str = "") -> list[Difference]:
    """Compare all pairs of losses, or every loss with one `reference`.

    `hits` has a tensor of shape (seeds, images) for each loss, with at least two seeds: whether an image was a hit, or, for
    several queries of an image, a number whose mean is the share of hits.
    """
    images = {len(hit[0]) for hit in hits.values()}
    if len(images) > 1 or any(len(hit) < 2 for hit in hits.values()):
        shapes = ", ".join(f"{name} {tuple(hit.shape)}" for name, hit in hits.items())
        raise ValueError(f"hits: expected at least two seeds, and the same test images for all losses, got {shapes}")
    rows = {name: hit.double() for name, hit in hits.items()}
    # Bonferroni: each of m pairs is tested at 1/m of the level.
    pairs = [(name, reference) for name in rows if name != reference] if reference else list(combinations(rows, 2))
    return [_difference(rows, a, b, level / len(pairs)) for a, b in pairs]


def _difference(rows: Mapping[str, Tensor], a: str, b: str, level: float) -> Difference:
    # Two artificial images, one in favour of each loss (Bonett & Price), keep the error of a small test set above zero.
    by_image = torch.cat([rows[a].mean(0) - rows[b].mean(0), torch.tensor([1.0, -1.0], dtype=torch.float64)])
    test_variance = float(by_image.var()) / len(by_image)
    # There are few seeds, so the variance is pooled over all losses; a pair that varies more than the others uses its own.
    variance, degrees = max(_seed_variance([rows[a], rows[b]]), _seed_variance(list(rows.values()))), _degrees(rows)
    seed_variance = variance * (1 / len(rows[a]) + 1 / len(rows[b]))
    # Cochran & Cox: the critical value is the mean of the two t distributions' values, weighted by the variances. Welch and
    # Satterthwaite's is too small for two seeds.
    critical = seed_variance * _quantile(level, degrees) + test_variance * _quantile(level, len(by_image) - 1)
    total = seed_variance + test_variance
    points, chance = 100 * float(by_image.mean()), 100 * critical / total * math.sqrt(total)
    return Difference(a, b, points, chance) if points >= 0 else Difference(b, a, -points, chance)


def _seed_variance(rows: Sequence[Tensor]) -> float:
    """Return the variance of the accuracy over seeds, pooled over losses."""
    squares = sum(float(row.mean(1).var()) * (len(row) - 1) for row in rows)
    return squares / sum(len(row) - 1 for row in rows)


def _degrees(rows: Mapping[str, Tensor]) -> int:
    return sum(len(row) - 1 for row in rows.values())


@cache
def _quantile(level: float, degrees: int) -> float:
    """Return the number of standard errors that a difference exceeds by chance with probability `level`."""
    from scipy.stats import t  # installed with scikit-learn

    return float(t.isf(level / 2, degrees))


def in_words(names: Sequence[str], found: Sequence[Difference]) -> str:
    """Say which losses are ahead of which, and which do not differ clearly; `names` are sorted by accuracy."""
    unclear = [difference for difference in found if not difference.clear]
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        behind = {difference.second for difference in found if difference.clear and difference.first == name}
        if behind:
            groups.setdefault(tuple(other for other in names if other in behind), []).append(name)
    sentences = [
        f"{list_words(ahead)} {'is' if len(ahead) == 1 else 'are'} ahead of {list_words(behind)}"
        for behind, ahead in groups.items()
    ]
    if not groups:
        sentences = [f"These runs show no clear difference between {list_words(names)}"]
    elif len(unclear) > _MAX_NAMED_PAIRS:
        sentences.append("there is no clear difference between the others")
    elif unclear:
        pairs = [list_words([name for name in names if name in (pair.first, pair.second)]) for pair in unclear]
        sentences.append(f"there is no clear difference between {', or between '.join(pairs)}")
    return "; ".join(sentences)


def list_words(names: Sequence[str]) -> str:
    """Return "A, B and C"."""
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
