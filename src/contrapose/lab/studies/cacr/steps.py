"""Claims about the time per training step, which Tables 14 and 17 report."""

from __future__ import annotations

import math

from contrapose.lab.studies.claims import Claim, computed_claim
from contrapose.lab.studies.results import Results

STEP_DIFFERENCE = "We time a whole step with augmentation and optimiser; the paper does not say what its times include."


def is_slower(slow: str, fast: str, *, at_most: float | None = None) -> Claim:
    """Claim that a step of row `slow` takes longer than a step of row `fast`, or at most `at_most` times as long.

    The claim is undecided if the times differ by less than a tenth.
    """

    def decide(results: Results) -> tuple[bool | None, str]:
        ratio = results.cell(slow, "").mean / results.cell(fast, "").mean
        if math.isnan(ratio):
            return None, "not timed"
        if at_most is None:
            yes = True if ratio > 1.1 else False if ratio < 1 else None
        else:
            yes = True if ratio <= at_most else False if ratio > 1.1 * at_most else None
        return yes, f"{ratio:.2f} times as long"

    times = f"at most the printed {at_most:.2f} times as long as" if at_most is not None else "longer than"
    return computed_claim(f"a step of {slow} takes {times} one of {fast}", decide)
