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

NO_PROOF = "Trials with random embeddings can refute a theorem but not prove it."  # a note in each study
ROUNDING = 1e-11  # bound on the rounding error when a few hundred float64 numbers are summed at τ ≥ 0.05


def seeded(seed: int) -> torch.Generator:
    """Return a random generator that depends only on the seed."""
    return torch.Generator().manual_seed(seed)


def draw_unit_vectors(generator: torch.Generator, *shape: int, concentration: float = 0.0) -> Tensor:
    """Return random unit vectors: uniform on the sphere, or concentrated around the first axis by `concentration`."""
    x = torch.randn(*shape, generator=generator, dtype=torch.float64)
    # The noise has length √d, and so has the mean direction at a concentration of 1.
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
