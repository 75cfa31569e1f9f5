"""The README's examples run as they stand."""

from __future__ import annotations

import re

import pytest
from pages import ROOT, python_blocks

README = ROOT / "README.md"
EXAMPLES = python_blocks(README)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: text.splitlines()[0])
def test_an_example_runs(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(example, str(README), "exec"), {})


def test_the_first_example_is_ten_lines_or_so() -> None:
    assert EXAMPLES
    assert len(EXAMPLES[0].splitlines()) <= 13


def test_commands_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (README.parent / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"[`\n]make ([a-z-]+)", README.read_text()))
    assert named
    assert named <= targets
