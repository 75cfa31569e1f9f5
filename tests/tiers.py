"""Which cases of a long table `make test` runs; `make test-all` runs all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def every(step: int, cases: Iterable[Any]) -> list[Any]:
    """Mark all but every `step`-th case as thorough. A prime number meets each row and column of a table in turn."""
    return [case if i % step == 0 else _thorough(case) for i, case in enumerate(cases)]


def every_row(step: int, cases: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Do the same with cases of several arguments each."""
    return [case if i % step == 0 else _thorough(*case) for i, case in enumerate(cases)]


def first(count: int, cases: Iterable[Any]) -> list[Any]:
    """Mark all cases after the first ones as thorough; a case of several arguments is a tuple."""
    chosen = list(cases)
    rest = (case if isinstance(case, tuple) else (case,) for case in chosen[count:])
    return [*chosen[:count], *(_thorough(*case) for case in rest)]


def _thorough(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.thorough)
