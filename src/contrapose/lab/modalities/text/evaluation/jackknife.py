"""The uncertainty of a difference between two STS scores, by a jackknife over the scored pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from contrapose.lab.modalities.text.evaluation.sts import STS_TASKS, SentencePair, correlations
from contrapose.randomness import permutation

_GROUPS = 50  # groups of pairs that are left out in turn; more groups take longer and hardly change the result
_NORMAL = 1.96  # standard errors on each side of a difference within which it lies in 95 % of the test sets


def jackknife_margin(pairs: Sequence[SentencePair], cosine: Tensor, baseline: Tensor, score: str) -> float:
    """Return 1.96 standard errors of the difference between the scores of two cosine similarities, (n,) each.

    score   name of a score in `correlations`: a task, or sts_mean

    Both similarities lose the same pairs each time, so that what makes pairs hard for both does not count as uncertainty.
    """
    rows = torch.tensor(rows_of_score(pairs, score))
    rows = rows[permutation(len(rows), 0)]  # a file may be sorted by its scores
    groups = min(_GROUPS, len(rows))
    differences = []
    for group in range(groups):
        kept = rows[torch.arange(len(rows)) % groups != group]
        kept_pairs = [pairs[row] for row in kept.tolist()]
        differences.append(
            correlations(kept_pairs, cosine[kept])[score] - correlations(kept_pairs, baseline[kept])[score]
        )
    spread = torch.tensor(differences, dtype=torch.float64).var(correction=0)
    return _NORMAL * math.sqrt((groups - 1) * float(spread))


def rows_of_score(pairs: Sequence[SentencePair], score: str) -> list[int]:
    """Return the rows of the pairs that a score in `correlations` depends on."""
    tasks = STS_TASKS if score == "sts_mean" else (score,)
    return [row for row, pair in enumerate(pairs) if pair.task in tasks]
