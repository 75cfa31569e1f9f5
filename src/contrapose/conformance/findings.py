"""`Finding`: the result of one case of a check."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

Verdict = Literal["ok", "not offered", "scaled", "differs", "not finite", "raises"]  # from the best to the worst


@dataclass(frozen=True)
class Finding:
    """The result of one case of a check.

    ok           the result is as expected, or the criterion rejected the input with a ValueError where that is allowed
    not offered  the criterion has no such option, and nothing was compared
    scaled       the gradient is the expected gradient times a constant, `figure`
    differs      value or gradient differs from the expected value or gradient by more than the tolerance
    not finite   value or gradient is NaN or infinite
    raises       an exception was raised; `note` has its message
    """

    check: str
    case: str  # what was tried, such as "2 processes" or "temperature 0.001"
    verdict: Verdict
    figure: float | None = None  # the measured number; in most checks, the largest relative difference
    note: str = ""

    @property
    def failed(self) -> bool:
        """Whether the criterion gave a wrong result, or no result."""
        return self.verdict not in ("ok", "not offered")

    def record(self) -> dict[str, Any]:
        """Return the fields for JSON, without those that were not measured or that JSON cannot represent."""
        fields = {key: value for key, value in asdict(self).items() if value not in (None, "")}
        return {k: v for k, v in fields.items() if not (isinstance(v, float) and not math.isfinite(v))}

    def __str__(self) -> str:
        figure = "" if self.figure is None else f" {self.figure:.2g}"
        return f"{self.check}, {self.case}: {self.verdict}{figure}{f' ({self.note})' if self.note else ''}"


def worst(findings: Iterable[Finding]) -> Finding:
    """Return the finding with the worst verdict and, among those, the largest figure."""
    severity = get_args(Verdict)
    return max(findings, key=lambda finding: (severity.index(finding.verdict), finding.figure or 0.0))
