"""The README's examples run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: text.splitlines()[0])
def test_an_example_runs(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(example, str(README), "exec"), {})


def test_the_first_example_is_ten_lines_or_so() -> None:
    assert len(EXAMPLES) >= 2
    assert len(EXAMPLES[0].splitlines()) <= 13


def test_commands_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (README.parent / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"[`\n]make ([a-z-]+)", README.read_text()))
    assert named
    assert named <= targets
