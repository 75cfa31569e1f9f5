"""The page of promises shows all of them, and names what failed and what is missing."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import promises_page
import pytest
from promises_page import PROMISES, cells, matches, read_lines

FOLDER = Path(__file__).parent
VALUES = PROMISES[0]


def line(name: str, **changes: Any) -> dict[str, Any]:
    return {"name": name, "cases": 4, "passed": True, "worst": 1e-13, "seconds": 0.5, **changes}


def promise_tests() -> list[str]:
    """Return the tests of this folder that write a line: those with the fixture `promise`."""
    return [
        f"{path.name}::{function.name}"
        for path in sorted(FOLDER.glob("test_*.py"))
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef) and function.name.startswith("test_")
        if "promise" in [argument.arg for argument in function.args.args]
    ]


def test_every_line_belongs_to_one_promise() -> None:
    for name in promise_tests():
        # A promise may be that of some parameters, which are not known here.
        rows = [row.name for row in PROMISES if any(matches(name, t) or t.startswith(f"{name}[") for t in row.tests)]
        assert len(rows) == 1 or (rows == ["torn write", "disk full"]), (name, rows)


def test_a_promise_without_tests_is_missing() -> None:
    written = promise_tests()
    absent = [
        row.name for row in PROMISES for t in row.tests if not any(n.startswith(t.split("[")[0]) for n in written)
    ]
    assert absent == []
    assert cells(VALUES, []) == ("missing: no test has written a line", "0", "0", "–", "0.0")
    page = promises_page.promises_page([])
    assert page.count("missing: no test has written a line") == len(PROMISES)
    assert all(row.sentence.split(",")[0] in page for row in PROMISES if "'" not in row.sentence)


def test_lines_are_added_up_and_failures_named() -> None:
    lines = [line("test_values.py::test_a[<x>]"), line("test_values.py::test_b", worst=3e-13, cases=1000)]
    assert cells(VALUES, lines) == ("yes", "1,004", "2", "3e-13 relative error", "1.0")
    lines[0]["passed"] = False
    assert cells(VALUES, lines)[0] == "no: 1 of 2 tests failed: test_values.py::test_a[<x>]"
    assert "&lt;x&gt;" in promises_page.promises_page(lines)
    (kill,) = (row for row in PROMISES if row.name == "kill -9")
    assert cells(kill, [line("test_resume.py::test_kill_nine_and_resume[0]")])[0].startswith(
        "incomplete: no line of test_"
    )


@pytest.mark.parametrize("known", [False, True])
def test_the_command(known: bool, tmp_path: Path) -> None:
    if known:
        old, new = line("test_flat_memory.py::x", cases=300), line("test_flat_memory.py::x", versions={"torch": "9.9"})
        (tmp_path / "promises.jsonl").write_text(f"{json.dumps(old)}\n{json.dumps(new)}\n")
        assert read_lines(tmp_path / "promises.jsonl") == [new]  # the last line of a test is the one that counts
    command = [sys.executable, promises_page.__file__, "promises.jsonl", "-o", "out/promises.html"]
    output = subprocess.check_output(command, cwd=tmp_path, text=True)
    assert len(output.splitlines()) == len(PROMISES) + 2
    page = (tmp_path / "out" / "promises.html").read_text()
    assert f"{int(known)} of {len(PROMISES)} promises are shown to be kept" in page
    assert ("torch 9.9" in page) == known
    subprocess.run([*command[:-1], "out/promises.md"], cwd=tmp_path, check=True, capture_output=True)
    table = (tmp_path / "out" / "promises.md").read_text()
    assert table.count("\n| ") == len(PROMISES) + 2
    assert ("- torch 9.9" in table) == known
