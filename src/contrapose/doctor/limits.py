"""The limits beyond which the doctor speaks, each with what was measured on healthy runs.

These are 55 runs of 400 steps on a CPU, looked at 22 times each: all methods of the catalogue on digits, two runs in bf16, and
one or two each on Tiny-ImageNet (10 classes), STS and Flickr8k. `python benchmarks/doctor_faults.py --healthy` trains them again.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limit:
    """A limit of one number."""

    value: float
    healthy: str  # the most extreme value on healthy runs, and why the limit keeps the distance that it keeps


# Nothing learned: both must hold in three looks.
LEARNING_STEPS = Limit(300, "all healthy runs find positives six times as often as by chance after 300 steps")
RETRIEVAL = Limit(3.0, "times chance: at least 6.0 (triplet on digits); three standard errors are added")
NOTHING_LEARNED = Limit(
    0.05, "share of the possible fall: at least 0.016 (hard_simple), whose retrieval is 22 times chance"
)

TOO_EASY = Limit(0.01, "share of the loss that is left: 0.0103 (clip on STS), but only after 350 steps")
TOO_EASY_STEPS = Limit(100, "no healthy run has a retrieval above 0.9 and is solved this early")
IDENTICAL = Limit(0.5, "share of equal pairs: 0 in all healthy runs, since augmentation and dropout change all numbers")

# Temperature too low: few negatives and a strong pull, or a temperature that no method has.
FEW_NEGATIVES = Limit(
    1.0, "besides the first: 7.0 among runs with a strong pull (clip on digits); on random embeddings 0.6 at τ = 0.005"
)
STRONG_PULL = Limit(
    10.0,
    "NT-Xent pulls by up to 1 / τ; a triplet loss, which has 0.46 negatives besides the first on purpose, by up to 1",
)
LOW_TEMPERATURE = Limit(0.008, "at least 0.011 (hard_contrastive); CLIP's scale ends at 0.01")

# Temperature too high: both must hold.
FLAT = Limit(0.97, "share of the negatives that matter: 1.0 (simple, uaur), whose loss has a wide range nevertheless")
RANGE = Limit(0.05, "by how much the loss can fall: at least 0.18 with a flat push (τ = 1); 0.1 / log N at τ = 10")

TWINS = Limit(0.15, "share of rows with a twin: at most 0.094 (siglip and macl on digits)")
TWIN_PAIRS = Limit(4, "pairs: in a batch of 32, one pair is 6 % of the rows and is often chance")
DUPLICATES = Limit(
    0.05,
    "share of rows with an equal one: 0 in these runs; with STS as it is, 0.063 in one batch; two of three looks count",
)
DEVIATION = Limit(0.05, "at least 0.146 (hard_contrastive); 0.046 in a triplet run that had collapsed to chance")
RANK = Limit(2.0, "effective rank: at least 4.8 (simple)")
SETTLED_STEPS = Limit(
    32, "steps before which an untrained network may look collapsed; also the limit of `contrapose train`"
)
GAP = Limit(3.0, "in spreads: at most 0.19 (siglip on Flickr8k)")
NORM = Limit(0.05, "from a length of 1: criteria of these runs normalise themselves; bf16 has steps of 0.004 to 0.008")
SENSITIVE = Limit(1e-3, "relative change of the loss with the lengths: 0.0000 for criteria that normalise")
COLUMN = Limit(1e-2, "of a column's length from 1: at least 0.19 (clip on STS)")
NO_PULL = Limit(1e-2, "of the push: at least 0.29 (dystress_dcl_authors)")
ORDER = Limit(
    6.0, "standard deviations: at most 5.3 (one batch of digits, zero_icl); two of 20 looks must exceed the limit"
)
PRECISION = Limit(0.1, "relative error of the gradient: at most 0.012, with the loss under autocast in bf16 at τ = 0.1")
FROZEN_STEPS = Limit(64, "steps: gradients may be accumulated over tens of calls before a weight changes")

# Across processes, on random embeddings in two processes.
SAME_ROWS = Limit(
    0.5, "share of equal rows beyond others: at most 0.042 with different samples, 0.86 with the same ones"
)
AGREEMENT = Limit(
    0.999, "cosine: 1.00000 with contrapose.gather; 0.67 with keys of other processes that have no gradient"
)
FACTOR = Limit(0.01, "from 1: below 0.00001 with contrapose.gather in float32")
