"""`Finding`: something that is wrong in a training loop, with what was seen, what it means and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any, Literal

_SHOWN = 3  # groups of rows in a text
Severity = Literal["error", "warning", "note"]  # from the worst to the mildest


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One finding of the doctor."""

    name: str  # short and fixed, such as "collapse"; also the heading in docs/doctor.md
    severity: Severity  # error: training cannot work; warning: it works worse; note: worth knowing
    seen: str  # the numbers that were measured
    means: str  # what they mean for training
    do: str  # what to type or to check
    step: int = 0  # step of the look that found it
    rows: tuple[tuple[int, ...], ...] = ()  # groups of rows of that batch that the finding is about
    numbered: str = "row"  # what `rows` numbers: a row of the batch, or a sample of the data set

    def __str__(self) -> str:
        head = f"{self.severity}: {self.name} (step {self.step:,})"
        body = (f"seen: {self.seen}{self.examples()}", f"means: {self.means}", f"do: {self.do}")
        return "\n".join([head, *(fill(line, 100, initial_indent="  ", subsequent_indent="    ") for line in body)])

    def examples(self) -> str:
        """Return a few of the groups, as the end of a sentence."""
        groups = [" and ".join(map(str, group)) for group in self.rows[:_SHOWN]]
        return f", such as {self.numbered}s {', '.join(groups)}" if groups else ""

    def as_json(self) -> dict[str, Any]:
        """Return the fields for a JSON file."""
        return {**vars(self), "rows": [list(group) for group in self.rows]}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Finding:
        """Return the finding that `as_json` wrote."""
        return cls(**{**values, "rows": tuple(tuple(group) for group in values.get("rows", ()))})


def worst_first(findings: Sequence[Finding]) -> list[Finding]:
    """Return findings in the order of their severity, and of the step at which they appeared."""
    order = ("error", "warning", "note")
    return sorted(findings, key=lambda finding: (order.index(finding.severity), finding.step))
