"""The limits, and docs/doctor.md, which describes each finding, in the doctor's words."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import contrapose.doctor
from contrapose.doctor import limits

PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"


def finding_names() -> set[str]:
    """The names in all calls of `Finding` in the package."""
    names = set()
    for file in Path(contrapose.doctor.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding":
                names |= {ast.literal_eval(k.value) for k in node.keywords if k.arg == "name"}
    return names


def test_each_finding_has_a_section() -> None:
    assert len(finding_names()) > 20
    assert set(re.findall(r"^### (.*)$", PAGE.read_text(), re.MULTILINE)) == finding_names()


def test_each_limit_says_what_healthy_runs_have() -> None:
    values = {name: value for name, value in vars(limits).items() if isinstance(value, limits.Limit)}
    assert len(values) > 15
    assert [name for name, limit in values.items() if len(limit.healthy) < 20] == []


def test_the_page_has_the_limits() -> None:
    text = PAGE.read_text()
    for shown, limit in (
        (r"After (\d+) steps, positives", limits.LEARNING_STEPS),
        (r"After at most (\d+) steps", limits.TOO_EASY_STEPS),
        (r"After (\d+) steps, the embeddings", limits.SETTLED_STEPS),
        (r"over (\d+) steps, while", limits.FROZEN_STEPS),
    ):
        (found,) = re.findall(shown, text)
        assert float(found) == limit.value
    for shown, limit in (
        (r"More than (\d+) % of the rows have another", limits.DUPLICATES),
        (r"More than (\d+) % of the rows have exactly", limits.TWINS),
        (r"more than (\d+) % away from", limits.PRECISION),
    ):
        (found,) = re.findall(shown, text)
        assert float(found) / 100 == limit.value
