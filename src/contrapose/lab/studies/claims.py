"""Decide a paper's claims from measured numbers: a claim holds, does not hold, or is undecided.

A claim is a function from `Results` to a `Verdict`. The claims built here are checked on every data set that was measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from contrapose.lab.studies.results import Cell, Results

HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"
TOO_SHORT = "too short to tell"  # the outcome if training was known in advance to be too short to decide the claim


@dataclass(frozen=True)
class Verdict:
    """A claim, its outcome, and the numbers that decide it."""

    statement: str
    outcome: str
    evidence: str


Claim = Callable[[Results], Verdict]


def describe_cell(cell: Cell) -> str:
    """Return a cell in words: mean, standard deviation and number of seeds."""
    if not cell.values:
        return "no result"
    spread = f" ± {cell.spread:.2f} ({len(cell.values)} seeds)" if len(cell.values) > 1 else " (one seed)"
    return f"{cell.mean:.2f}{spread}"


def with_error(mean: float, error: float) -> str:
    """Return a mean over anchors and its standard error; only the mean if the run did not record the error."""
    return f"{mean:.3f} ± {error:.3f}" if error else f"{mean:.3f}"


def compare(a: Cell, b: Cell, margin: float) -> str:
    """Decide whether a exceeds b by the margin and, with several seeds, also by two standard errors of the difference."""
    if not a.values or not b.values or not math.isfinite(a.mean) or not math.isfinite(b.mean):
        return UNDECIDED
    difference, threshold = a.mean - b.mean, margin
    # With one seed the spread is unknown, so only the margin decides.
    if len(a.values) > 1 and len(b.values) > 1:
        threshold = max(margin, 2 * math.sqrt(a.spread**2 / len(a.values) + b.spread**2 / len(b.values)))
    if abs(difference) <= threshold:
        return UNDECIDED
    return HOLDS if difference > 0 else FAILS


def is_above(better: str, worse: str, quantity: str = "", *, margin: float = 0.5) -> Claim:
    """Claim that the quantity is higher in row `better` than in row `worse`."""

    def claim(results: Results) -> Verdict:
        outcomes, evidence = [], []
        for data_set in results.sets:
            a, b = results.cell(better, quantity, data_set), results.cell(worse, quantity, data_set)
            outcomes.append(compare(a, b, margin))
            evidence.append(f"{data_set}: {describe_cell(a)} against {describe_cell(b)}")
        statement = f"{better} is above {worse}" + (f" in {quantity}" if quantity else "")
        return Verdict(statement, _on_all(outcomes), f"{'; '.join(evidence)} (margin {margin:g})")

    return claim


def is_best(row: str, rows: Sequence[str], quantity: str = "", *, margin: float = 0.2, of: str = "") -> Claim:
    """Claim that the quantity is highest in `row` among all `rows` that can run; `of` names the group in the statement."""

    def claim(results: Results) -> Verdict:
        outcomes, evidence = [], []
        for data_set in results.sets:
            cells = {name: results.cell(name, quantity, data_set) for name in rows}
            measured = [name for name in rows if cells[name].values]
            outcomes += [compare(cells[row], cells[name], margin) for name in measured if name != row]
            # Rows that have not run yet could refute the claim, so it is not confirmed before they run; it may already fail.
            outcomes += [UNDECIDED] * (not results.complete(rows, quantity, data_set))
            ranked = sorted(measured, key=lambda name: -cells[name].mean)
            top = ", ".join(f"{name} {describe_cell(cells[name])}" for name in ranked[:4])
            evidence.append(f"{data_set}: {top}")
        return Verdict(f"{row} is best{of}", _on_all(outcomes), "; ".join(evidence))

    return claim


def is_above_most(row: str, others: Sequence[str], quantity: str = "", *, margin: float) -> Claim:
    """Claim that on each data set, the quantity is higher in `row` than in most of the `others`."""

    def claim(results: Results) -> Verdict:
        outcomes, evidence = [], []
        for data_set in results.sets:
            cells = {name: results.cell(name, quantity, data_set) for name in others if name in results.rows}
            own = results.cell(row, quantity, data_set)
            compared = [compare(own, cell, margin) for cell in cells.values()]
            # Rows without a value count neither as above nor as below, but they do count in the total.
            above, below = (compared.count(outcome) > len(compared) / 2 for outcome in (HOLDS, FAILS))
            outcomes.append(HOLDS if above else FAILS if below else UNDECIDED)
            missing = [name for name, cell in cells.items() if not cell.values]
            rest = f"; no result of {', '.join(missing)}" if missing else ""
            count = f"{compared.count(HOLDS)} of {len(compared) - len(missing)}"
            evidence.append(f"{data_set}: {describe_cell(own)} is above {count}{rest}")
        statement = f"{row} is above most of the others"
        return Verdict(statement, _on_all(outcomes), f"{'; '.join(evidence)} (margin {margin:g})")

    return claim


def is_near_best(row: str, others: Sequence[str], quantity: str = "", *, within: float, of: str) -> Claim:
    """Claim that `row` is at most `within` below the best of the `others` that can run; `of` names these rows."""

    def claim(results: Results) -> Verdict:
        outcomes, evidence = [], []
        for data_set in results.sets:
            own = results.cell(row, quantity, data_set)
            measured = {name: cell for name in others if (cell := results.cell(name, quantity, data_set)).values}
            raised = replace(own, values=tuple(value + within for value in own.values))
            outcomes += [compare(raised, cell, 0.0) for cell in measured.values()]
            # Rows that have not run yet could still refute the claim.
            outcomes += [UNDECIDED] * (not results.complete(others, quantity, data_set))
            best = max(measured, key=lambda name: measured[name].mean, default="")
            top = f"{best} {describe_cell(measured[best])}" if best else "no result"
            evidence.append(f"{data_set}: {describe_cell(own)} against {top}")
        statement = f"{row} is at most {within:g} below the best of {of}"
        return Verdict(statement, _on_all(outcomes), "; ".join(evidence))

    return claim


Points = Sequence[tuple[float, str]]  # (position on the axis, row)
Decide = Callable[[list[tuple[float, Cell]]], tuple[str, str]]  # (points that have values) -> (outcome, evidence)


def is_monotonic(points: Points, quantity: str = "", *, up: bool, margin: float, what: str = "") -> Claim:
    """Claim that the quantity rises (or falls) along the axis.

    At least 80 % of all pairs must be in that order, since noise may swap neighbours, and the two ends must differ by
    more than the margin.
    """

    def decide(measured: list[tuple[float, Cell]]) -> tuple[str, str]:
        y = [cell.mean if up else -cell.mean for _, cell in measured]
        ordered = [y[j] > y[i] for i in range(len(y)) for j in range(i + 1, len(y))]
        share, change = sum(ordered) / len(ordered), y[-1] - y[0]
        yes, no = share >= 0.8 and change > margin, share <= 0.5 or change < -margin
        (x_first, first), (x_last, last) = measured[0], measured[-1]
        ends = f"from {describe_cell(first)} at {x_first:g} to {describe_cell(last)} at {x_last:g}"
        return HOLDS if yes else FAILS if no else UNDECIDED, f"{100 * share:.0f} % of pairs in that order, {ends}"

    return _along(points, quantity, f"{what or quantity} {'rises' if up else 'falls'}", decide)


def has_peak(points: Points, quantity: str = "", *, low: float, high: float, margin: float, what: str = "") -> Claim:
    """Claim that the maximum lies between `low` and `high` on the axis, and that both ends are lower by the margin."""

    def decide(measured: list[tuple[float, Cell]]) -> tuple[str, str]:
        x, top = max(measured, key=lambda point: point[1].mean)
        first, last = measured[0], measured[-1]
        ends = ", ".join(f"{describe_cell(cell)} at {position:g}" for position, cell in (first, last))
        evidence = f"most at {x:g}: {describe_cell(top)}; {ends}"
        if x in (first[0], last[0]):  # the maximum is at an end; the claim fails only if it is clearly the maximum
            inside = max((cell for _, cell in measured[1:-1]), key=lambda cell: cell.mean)
            return FAILS if compare(top, inside, margin) == HOLDS else UNDECIDED, evidence
        falls = _on_all([compare(top, cell, margin) for _, cell in (first, last)])
        return UNDECIDED if falls == UNDECIDED else HOLDS if low <= x <= high else FAILS, evidence

    statement = f"{what or quantity} peaks between {low:g} and {high:g} and falls on both sides"
    return _along(points, quantity, statement, decide)


def stays_within(rows: Sequence[str], quantity: str = "", *, spread: float, what: str = "") -> Claim:
    """Claim that all rows lie within `spread` of each other."""

    def decide(measured: list[tuple[float, Cell]]) -> tuple[str, str]:
        low, high = min(cell.mean for _, cell in measured), max(cell.mean for _, cell in measured)
        return HOLDS if high - low <= spread else FAILS, f"from {low:.3f} to {high:.3f}"

    points = [(float(position), row) for position, row in enumerate(rows)]
    return _along(points, quantity, f"{what or quantity} stays within {spread:g}", decide, min_points=2)


def _along(points: Points, quantity: str, statement: str, decide: Decide, *, min_points: int = 3) -> Claim:
    """Return a claim about rows along an axis. The claim is undecided until every row that can run has a value."""

    def claim(results: Results) -> Verdict:
        outcomes, evidence = [], []
        for data_set in results.sets:
            cells = [(x, results.cell(row, quantity, data_set)) for x, row in sorted(points)]
            measured = [(x, cell) for x, cell in cells if cell.values]
            if len(measured) < min_points:
                outcome, reason = UNDECIDED, f"{len(measured)} points are too few"
            else:
                outcome, reason = decide(measured)
                if not results.complete([row for _, row in points], quantity, data_set):
                    outcome, reason = UNDECIDED, f"{reason}; not all have run"
            outcomes.append(outcome)
            evidence.append(f"{data_set}: {reason}" if len(results.sets) > 1 else reason)
        return Verdict(statement, _on_all(outcomes), "; ".join(evidence) or "nothing has run")

    return claim


def on_data_sets(names: Sequence[str], claim: Claim) -> Claim:
    """Restrict a claim to some data sets."""

    def restricted(results: Results) -> Verdict:
        measured = tuple(data_set for data_set in results.sets if data_set in names)
        verdict = claim(replace(results, sets=measured))
        evidence = verdict.evidence if measured else "nothing has run"
        return replace(verdict, statement=f"{verdict.statement} ({' and '.join(names)})", evidence=evidence)

    return restricted


def needs_seeds(least: int, claim: Claim) -> Claim:
    """Leave a claim undecided until there are at least `least` seeds; for runs that vary a lot between seeds."""

    def cautious(results: Results) -> Verdict:
        verdict = claim(results)
        fewest = min((len(cell.values) for cell in results.cells.values() if cell.values), default=0)
        if fewest >= least:
            return verdict
        evidence = f"{verdict.evidence}; {fewest} of at least {least} seeds"
        return replace(verdict, outcome=UNDECIDED, evidence=evidence)

    return cautious


def computed_claim(statement: str, decide: Callable[[Results], tuple[bool | None, str]]) -> Claim:
    """Return a claim decided by a function of the results, which returns True, False or None (undecided), and the evidence."""

    def claim(results: Results) -> Verdict:
        yes, evidence = decide(results)
        return Verdict(statement, UNDECIDED if yes is None else HOLDS if yes else FAILS, evidence)

    return claim


def _on_all(outcomes: Sequence[str]) -> str:
    """Return the outcome over all data sets: the claim fails if it fails on one data set, and holds if it holds on all."""
    if outcomes and all(outcome == HOLDS for outcome in outcomes):
        return HOLDS
    return FAILS if FAILS in outcomes else UNDECIDED
