from __future__ import annotations

import pytest

from contrapose.studies import find
from contrapose.studies.claims import (
    FAILS,
    HOLDS,
    UNDECIDED,
    compare,
    computed_claim,
    has_peak,
    is_above,
    is_best,
    is_monotonic,
    stays_within,
)
from contrapose.studies.results import Cell, Results


def results(**rows: tuple[float, ...]) -> Results:
    cells = {(name, "", "digits"): Cell(values) for name, values in rows.items()}
    return Results(sets=("digits",), rows=frozenset(rows), cells=cells)


def test_one_seed_needs_a_margin() -> None:
    assert compare(Cell((80.0,)), Cell((79.0,)), 0.5) == HOLDS
    assert compare(Cell((79.0,)), Cell((80.0,)), 0.5) == FAILS
    assert compare(Cell((80.0,)), Cell((79.7,)), 0.5) == UNDECIDED
    assert compare(Cell(), Cell((79.7,)), 0.5) == UNDECIDED


def test_several_seeds_need_two_standard_errors_too() -> None:
    clear, noisy = Cell((80.0, 80.1, 79.9)), Cell((79.0, 81.0, 77.0))
    assert compare(clear, Cell((79.5, 79.4, 79.6)), 0.3) == HOLDS
    assert compare(clear, Cell((79.5, 79.4, 79.6)), 10.0) == UNDECIDED
    assert compare(clear, Cell((float("nan"),)), 0.1) == UNDECIDED
    assert compare(clear, noisy, 0.0) == UNDECIDED
    assert clear.spread == pytest.approx(0.1)


def test_above_and_best() -> None:
    measured = results(a=(3.0,), b=(2.0,), c=(1.0,))
    assert is_above("a", "b")(measured).outcome == HOLDS
    assert is_above("b", "a")(measured).outcome == FAILS
    assert is_above("a", "missing")(measured).outcome == UNDECIDED
    assert is_best("a", ["a", "b", "c"])(measured).outcome == HOLDS
    assert is_best("b", ["a", "b", "c"])(measured).outcome == FAILS
    assert "a 3.00 (one seed), b 2.00" in is_best("b", ["a", "b", "c"])(measured).evidence


def test_along_an_axis() -> None:
    points = [(0.1, "a"), (0.2, "b"), (0.5, "c"), (1.0, "d")]
    rising, hill = results(a=(1.0,), b=(2.0,), c=(2.5,), d=(4.0,)), results(a=(1.0,), b=(4.0,), c=(3.0,), d=(2.0,))
    assert is_monotonic(points, up=True, margin=0.5)(rising).outcome == HOLDS
    assert is_monotonic(points, up=False, margin=0.5)(rising).outcome == FAILS
    assert is_monotonic(points, up=True, margin=5.0)(rising).outcome == UNDECIDED
    assert is_monotonic(points[:2], up=True, margin=0.5)(rising).outcome == UNDECIDED
    assert has_peak(points, low=0.15, high=0.3, margin=0.5)(hill).outcome == HOLDS
    assert has_peak(points, low=0.3, high=0.6, margin=0.5)(hill).outcome == FAILS
    assert has_peak(points, low=0.15, high=2.0, margin=0.5)(rising).outcome == FAILS  # it never falls
    assert has_peak(points, low=0.15, high=0.3, margin=3.0)(hill).outcome == UNDECIDED
    assert stays_within(["a", "b"], spread=1.0)(rising).outcome == HOLDS
    assert stays_within(["a", "d"], spread=1.0)(rising).outcome == FAILS


def test_incomplete_results_are_undecided() -> None:
    points = [(0.1, "a"), (0.2, "b"), (0.5, "c"), (1.0, "d")]
    incomplete = results(a=(1.0,), b=(2.0,), c=(3.0,), d=())
    assert has_peak(points, low=0.15, high=0.3, margin=0.5)(incomplete).outcome == UNDECIDED
    assert is_monotonic(points, up=True, margin=0.5)(incomplete).outcome == UNDECIDED
    assert stays_within(["a", "b", "d"], spread=5.0)(incomplete).outcome == UNDECIDED
    assert is_best("c", ["a", "b", "c", "d"])(incomplete).outcome == UNDECIDED
    assert is_best("a", ["a", "b", "c", "d"])(incomplete).outcome == FAILS  # whatever d will be
    assert is_best("c", ["a", "b", "c", "BYOL"])(incomplete).outcome == HOLDS  # BYOL is not built


def test_every_data_set_counts() -> None:
    points = [(0.1, "a"), (0.2, "b"), (0.5, "c")]
    up, down = (1.0, 2.0, 3.0), (3.0, 2.0, 1.0)
    cells = {
        (row, "", on): Cell((y,)) for on, ys in (("one", up), ("two", down)) for row, y in zip("abc", ys, strict=True)
    }
    verdict = is_monotonic(points, up=True, margin=0.5)(Results(sets=("one", "two"), cells=cells))
    assert verdict.outcome == FAILS
    assert "two: " in verdict.evidence


def test_computed() -> None:
    assert computed_claim("it is so", lambda measured: (True, "seen"))(results()).outcome == HOLDS
    assert computed_claim("it is so", lambda measured: (False, "seen"))(results()).outcome == FAILS
    assert computed_claim("it is so", lambda measured: (None, "seen"))(results()).outcome == UNDECIDED


def test_a_half_done_grid_decides_nothing() -> None:
    study = find("balanced/figure4")
    names = ["balanced α = 4, λ = 2", "balanced α = 1, λ = 1", "generalized α = 2, λ = 2", "generalized α = 2, λ = 1"]
    cells = {(name, "", "digits"): Cell((value,)) for name, value in zip(names, (80.0, 70.0, 60.0, 50.0), strict=True)}
    every = frozenset(row.name for row in study.rows)
    for rows, outcome in ((every, UNDECIDED), (frozenset(names), HOLDS)):  # judged by themselves, they decide
        measured = Results(sets=("digits",), rows=rows, cells=cells)
        assert [claim(measured).outcome for claim in study.claims[:3]] == [outcome] * 3
