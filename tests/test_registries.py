"""A new objective, framework or modality cannot be left out of the tests silently: their tables are held against the registries."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from promises import test_resume

from contrapose.frameworks import FRAMEWORKS
from contrapose.losses.objective import traits_of
from contrapose.losses.parse import _OBJECTIVES, parse
from contrapose.modalities import MODALITIES
from contrapose.training import Run

TESTS = Path(__file__).parent
# Trained, stopped and resumed in the tests of their modality.
FRAMEWORKS_OF_MODALITIES = {"simcse": "training/test_text_runs.py", "two_towers": "training/test_caption_runs.py"}


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


def test_every_framework_is_stopped_and_resumed() -> None:
    changes = (*test_resume.CHANGES, *test_resume.FURTHER_CHANGES)
    tried = {str(change.get("framework", Run.framework)) for change in changes}
    assert tried == FRAMEWORKS.keys() - FRAMEWORKS_OF_MODALITIES.keys()
    for path in FRAMEWORKS_OF_MODALITIES.values():
        assert any("resumes" in word for word in words(path))


@pytest.mark.parametrize("name", MODALITIES)
def test_every_modality_has_tests(name: str) -> None:
    assert list((TESTS / "modalities" / name).glob("test_*.py"))
