"""Random trials of a theorem: unit vectors in float64, drawn from a seed, and claims about the slack of a bound.

The slack is the larger side of an inequality minus the smaller one: a theorem holds if no trial has a negative slack.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import normalize

from contrapose.lab.studies.claims import Claim, computed_claim
from contrapose.lab.studies.results import Results

NO_PROOF = "Random embeddings are tried, which can refute a theorem but not prove it."  # a note in each study
ROUNDING = 1e-11  # rounding error of sums of a few hundred float64 numbers, at temperatures down to 0.05


def seeded(seed: int) -> torch.Generator:
    """Return a generator whose draws depend on the seed alone."""
    return torch.Generator().manual_seed(seed)


def draw_unit_vectors(generator: torch.Generator, *shape: int, concentration: float = 0.0) -> Tensor:
    """Return random unit vectors: uniform on the sphere, or gathered around the first axis by `concentration`."""
    x = torch.randn(*shape, generator=generator, dtype=torch.float64)
    # The noise has length √d: at a concentration of 1 the mean direction is as long.
    x[..., 0] += concentration * shape[-1] ** 0.5
    return normalize(x, dim=-1)


def is_never_negative(statement: str, slack: Callable[[], Tensor]) -> Claim:
    """Claim that no trial has a negative slack."""

    def decide(results: Results) -> tuple[bool, str]:
        trials = slack()
        violations = int((trials < -ROUNDING).sum())
        evidence = f"{len(trials)} trials, smallest slack {float(trials.min()):.1e}"
        return not violations, evidence + (f", negative in {violations}" if violations else "")

    return computed_claim(statement, decide)


def is_always_zero(statement: str, difference: Callable[[], Tensor]) -> Claim:
    """Claim that both sides of an equation agree in every trial."""

    def decide(results: Results) -> tuple[bool, str]:
        trials = difference().abs()
        return bool((trials < ROUNDING).all()), f"{len(trials)} trials, largest difference {float(trials.max()):.1e}"

    return computed_claim(statement, decide)
