"""Mutants change one place each, and the list of equivalent ones names mutants that exist."""

from __future__ import annotations

import ast

from mutants import AREAS, EQUIVALENT, PACKAGE, ROOT, Mutator, mutants_of, read_equivalent

SOURCE = '''"""Skipped: 1 + 1."""

def größer(a: int | None, b: int = 2) -> bool | None:
    if not (a < b and a):
        raise ValueError(f"{a + 1}")
    log(a, b)
    return -a * (b - 1.5) == max(a, b)
'''
MUTATED = [
    "def größer(a: int | None, b: int = 3) -> bool | None:",
    "if (a < b and a):",
    "if not (a < b or a):",
    "if not (a <= b and a):",
    "pass",
    "pass",
    "log(b, a)",
    "return -a * (b - 1.5) != max(a, b)",
    "return -a / (b - 1.5) == max(a, b)",
    "return a * (b - 1.5) == max(a, b)",
    "return -a * (b + 1.5) == max(a, b)",
    "return -a * (b - 3.0) == max(a, b)",
]


def test_each_kind_of_mutant() -> None:
    """Annotations, the order in max and what a message shows are left as they are; columns count bytes (ö, ß)."""
    source = SOURCE.encode()
    mutants = Mutator("a.py", source).mutants
    assert [mutant.difference(source).splitlines()[2].removeprefix("+ ") for mutant in mutants] == MUTATED
    assert all(ast.parse(mutant.applied(source)) for mutant in mutants)


def test_equivalent_mutants_exist() -> None:
    """A line that has changed since is no longer excused."""
    differences = {
        mutant.difference((ROOT / PACKAGE / mutant.path).read_bytes())
        for area in AREAS.values()
        for mutant in mutants_of(area)
    }
    reasons = read_equivalent(EQUIVALENT.read_text())
    assert reasons
    assert set(reasons) <= differences
    assert all(reason.endswith(".") for reason in reasons.values())


def test_the_tests_of_an_area_exist() -> None:
    for area in AREAS.values():
        first, others = area.stages("pairs/cross.py")
        assert all((ROOT / file).is_file() for file in (*first, *others))
