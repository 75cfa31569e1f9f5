"""A new objective or modality cannot be left out of the tests silently: their tables are held against the registries.

Frameworks need no table: `framework_cases` takes them from theirs.
"""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from contrapose.lab.frameworks import FRAMEWORKS, FrameworkSettings
from contrapose.lab.modalities import MODALITIES
from contrapose.lab.settings import help_texts
from contrapose.lab.training import Run
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


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_framework_describes_its_settings(name: str) -> None:
    row = FRAMEWORKS[name]
    assert row.summary
    for setting, text in help_texts(row.settings).items():
        assert text.endswith("."), setting
        assert name in help_texts(Run)[setting].split(":")[0].split(", ")
    assert row.settings_of(Run()) == row.settings()


def test_a_run_has_the_settings_of_every_framework() -> None:
    assert {setting.name for setting in fields(FrameworkSettings)} <= {setting.name for setting in fields(Run)}
    assert all(isinstance(Run(), row.settings) for row in FRAMEWORKS.values())


@pytest.mark.parametrize("name", MODALITIES)
def test_every_modality_has_tests(name: str) -> None:
    assert list((TESTS / "lab" / "modalities" / name).glob("test_*.py"))
