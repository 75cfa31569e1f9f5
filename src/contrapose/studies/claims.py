"""A paper's claim as something that numbers decide: it holds, it does not, or they do not decide."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from contrapose.studies.results import Cell, Results

HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"


@dataclass(frozen=True)
class Verdict:
    """What was claimed, how it came out, and the numbers that say so."""

    statement: str
    outcome: str
    evidence: str


Claim = Callable[[Results], Verdict]


def shown(cell: Cell) -> str:
    """A cell in words: mean, spread and number of seeds."""
    if not cell.values:
        return "nothing"
    spread = f" ± {cell.spread:.2f} ({len(cell.values)} seeds)" if len(cell.values) > 1 else " (one seed)"
    return f"{cell.mean:.2f}{spread}"


def compared(a: Cell, b: Cell, margin: float) -> str:
    """Whether a is above b: by the margin and, where there are several seeds, by two standard errors of the difference."""
    if not a.values or not b.values or not math.isfinite(a.mean) or not math.isfinite(b.mean):
        return UNDECIDED
    difference, least = a.mean - b.mean, margin
    if len(a.values) > 1 and len(b.values) > 1:
        least = max(margin, 2 * math.sqrt(a.spread**2 / len(a.values) + b.spread**2 / len(b.values)))
    if abs(difference) <= least:
        return UNDECIDED
    return HOLDS if difference > 0 else FAILS


def above(better: str, worse: str, quantity: str = "", *, margin: float = 0.5) -> Claim:
    """Row `better` has more of the quantity than row `worse`, on every data set that was measured."""

    def claim(results: Results) -> Verdict:
        parts = [(results.cell(better, quantity, on), results.cell(worse, quantity, on)) for on in results.sets]
        evidence = "; ".join(
            f"{on}: {shown(a)} against {shown(b)}" for on, (a, b) in zip(results.sets, parts, strict=True)
        )
        statement = f"{better} is above {worse}" + (f" in {quantity}" if quantity else "")
        return Verdict(statement, _all([compared(a, b, margin) for a, b in parts]), f"{evidence} (margin {margin:g})")

    return claim


def best(row: str, rows: Sequence[str], quantity: str = "", *, margin: float = 0.2, of: str = "") -> Claim:
    """Row `row` has the most of all that can run, on every data set that was measured; `of` says which, if not all."""

    def claim(results: Results) -> Verdict:
        outcomes, evidence = [], []
        for on in results.sets:
            cells = {name: results.cell(name, quantity, on) for name in rows}
            there = [name for name in rows if cells[name].values]
            outcomes += [compared(cells[row], cells[name], margin) for name in there if name != row]
            outcomes += [UNDECIDED] * (not results.complete(rows, quantity, on))
            ranked = sorted(there, key=lambda name: -cells[name].mean)
            evidence.append(f"{on}: " + ", ".join(f"{name} {shown(cells[name])}" for name in ranked[:4]))
        return Verdict(f"{row} is best{of}", _all(outcomes), "; ".join(evidence))

    return claim


Points = Sequence[tuple[float, str]]  # where each row stands on the axis
Decide = Callable[[list[tuple[float, Cell]]], tuple[str, str]]  # the points that are there -> outcome, evidence


def moves(points: Points, quantity: str = "", *, up: bool, margin: float, what: str = "") -> Claim:
    """The quantity rises (or falls) along the axis: four of five pairs in that order, and the ends by the margin."""

    def decide(there: list[tuple[float, Cell]]) -> tuple[str, str]:
        y = [cell.mean if up else -cell.mean for _, cell in there]
        agree = [y[j] > y[i] for i in range(len(y)) for j in range(i + 1, len(y))]
        share, change = sum(agree) / len(agree), y[-1] - y[0]
        yes, no = share >= 0.8 and change > margin, share <= 0.5 or change < -margin
        evidence = f"{100 * share:.0f} % of pairs in that order, from {shown(there[0][1])} at {there[0][0]:g} to "
        return HOLDS if yes else FAILS if no else UNDECIDED, f"{evidence}{shown(there[-1][1])} at {there[-1][0]:g}"

    return _along(points, quantity, f"{what or quantity} {'rises' if up else 'falls'}", decide)


def peaks(points: Points, quantity: str = "", *, low: float, high: float, margin: float, what: str = "") -> Claim:
    """The largest value stands between `low` and `high` on the axis, and both ends are lower by the margin."""

    def decide(there: list[tuple[float, Cell]]) -> tuple[str, str]:
        x, top = max(there, key=lambda point: point[1].mean)
        sides = ", ".join(f"{shown(there[end][1])} at {there[end][0]:g}" for end in (0, -1))
        evidence = f"most at {x:g}: {shown(top)}; {sides}"
        if x in (there[0][0], there[-1][0]):  # it never falls on one side, if an end is clearly on top
            inside = max((cell for _, cell in there[1:-1]), key=lambda cell: cell.mean)
            return FAILS if compared(top, inside, margin) == HOLDS else UNDECIDED, evidence
        ends = _all([compared(top, there[end][1], margin) for end in (0, -1)])
        return UNDECIDED if ends == UNDECIDED else HOLDS if low <= x <= high else FAILS, evidence

    return _along(
        points, quantity, f"{what or quantity} peaks between {low:g} and {high:g} and falls on both sides", decide
    )


def within(rows: Sequence[str], quantity: str = "", *, spread: float, what: str = "") -> Claim:
    """All rows lie within `spread` of each other."""

    def decide(there: list[tuple[float, Cell]]) -> tuple[str, str]:
        low, high = min(cell.mean for _, cell in there), max(cell.mean for _, cell in there)
        return HOLDS if high - low <= spread else FAILS, f"from {low:.3f} to {high:.3f}"

    points = [(float(place), row) for place, row in enumerate(rows)]
    return _along(points, quantity, f"{what or quantity} stays within {spread:g}", decide, least=2)


def _along(points: Points, quantity: str, statement: str, decide: Decide, *, least: int = 3) -> Claim:
    """A claim about rows along an axis, on every data set; open while a row that can run has no value."""

    def claim(results: Results) -> Verdict:
        outcomes, evidence = [], []
        for on in results.sets:
            cells = [(x, results.cell(row, quantity, on)) for x, row in sorted(points)]
            there = [(x, cell) for x, cell in cells if cell.values]
            if len(there) < least:
                outcome, said = UNDECIDED, f"{len(there)} points are too few"
            else:
                outcome, said = decide(there)
                if not results.complete([row for _, row in points], quantity, on):
                    outcome, said = UNDECIDED, f"{said}; not all have run"
            outcomes.append(outcome)
            evidence.append(f"{on}: {said}" if len(results.sets) > 1 else said)
        return Verdict(statement, _all(outcomes), "; ".join(evidence) or "nothing has run")

    return claim


def only_on(sets: Sequence[str], claim: Claim) -> Claim:
    """A claim that is about some data sets."""

    def narrowed(results: Results) -> Verdict:
        there = tuple(on for on in results.sets if on in sets)
        found = claim(replace(results, sets=there))
        evidence = found.evidence if there else "nothing has run"
        return replace(found, statement=f"{found.statement} ({' and '.join(sets)})", evidence=evidence)

    return narrowed


def computed(statement: str, decide: Callable[[Results], tuple[bool | None, str]]) -> Claim:
    """Anything else: a function that gives yes, no or None, and the evidence."""

    def claim(results: Results) -> Verdict:
        yes, evidence = decide(results)
        return Verdict(statement, UNDECIDED if yes is None else HOLDS if yes else FAILS, evidence)

    return claim


def _all(outcomes: Sequence[str]) -> str:
    if outcomes and all(outcome == HOLDS for outcome in outcomes):
        return HOLDS
    return FAILS if FAILS in outcomes else UNDECIDED
