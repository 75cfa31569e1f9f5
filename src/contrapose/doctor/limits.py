"""The limits beyond which the doctor speaks, each with what was measured on healthy runs.

`python benchmarks/doctor_faults.py --healthy` trains the healthy runs and prints the most extreme value of each number.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limit:
    """A limit of one number."""

    value: float
    healthy: str  # the most extreme value on healthy runs, and why the limit keeps the distance that it keeps


LEARNING_STEPS = Limit(300, "")
NOTHING_LEARNED = Limit(0.05, "")
RETRIEVAL = Limit(3.0, "")
TOO_EASY = Limit(0.01, "")
TOO_EASY_STEPS = Limit(100, "")
IDENTICAL = Limit(0.5, "")
FEW_NEGATIVES = Limit(1.0, "")
STRONG_PULL = Limit(10.0, "")
LOW_TEMPERATURE = Limit(0.008, "")
FLAT = Limit(0.97, "")
RANGE = Limit(0.05, "")
TWINS = Limit(0.15, "")
TWIN_PAIRS = Limit(4, "")
DUPLICATES = Limit(0.05, "")
DEVIATION = Limit(0.05, "")
RANK = Limit(2.0, "")
SETTLED_STEPS = Limit(32, "")
GAP = Limit(3.0, "")
NORM = Limit(0.05, "")
SENSITIVE = Limit(1e-3, "")
COLUMN = Limit(1e-2, "")
NO_PULL = Limit(1e-2, "")
ORDER = Limit(4.0, "")
PRECISION = Limit(0.1, "")
FROZEN_STEPS = Limit(64, "")
SAME_ROWS = Limit(0.5, "")
AGREEMENT = Limit(0.999, "")
FACTOR = Limit(0.01, "")
