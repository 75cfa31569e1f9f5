"""A new objective or modality cannot be left out of the tests silently: their tables are held against the registries.

So are those of frameworks, in promises/test_resume.py and training/test_graphed.py.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from contrapose.lab.modalities import MODALITIES
from contrapose.losses.objective import traits_of
from contrapose.losses.parse import _OBJECTIVES, parse

TESTS = Path(__file__).parent


def words(*paths: str) -> set[str]:
    return {word for path in paths for word in re.findall(r"\w+", (TESTS / path).read_text())}


@pytest.mark.parametrize("name", sorted(_OBJECTIVES))
def test_every_objective_has_a_case(name: str) -> None:
    takes = traits_of(parse(name).func).takes
    tables = {
        "pairs": ("cases.py",),
        "embeddings": ("losses/test_redundancy.py",),
        "assignments": ("losses/test_assignments.py",),
    }[takes]
    assert name in words(*tables)


@pytest.mark.parametrize("name", MODALITIES)
def test_every_modality_has_tests(name: str) -> None:
    assert list((TESTS / "lab" / "modalities" / name).glob("test_*.py"))
