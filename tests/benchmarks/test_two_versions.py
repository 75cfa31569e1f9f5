"""Two checkouts are timed in turns, each with its own package."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "two_versions.py"


@pytest.mark.thorough
def test_two_versions_are_timed_in_turns(tmp_path: Path) -> None:
    other = tmp_path / "src"
    other.mkdir()
    (other / "contrapose").symlink_to(ROOT / "src" / "contrapose")
    options = ["--device", "cpu", "--rounds", "1", "--seconds", "0.01"]
    done = subprocess.run(
        [sys.executable, SCRIPT, ROOT / "src", other, *options], check=True, capture_output=True, text=True
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    half = len(rows) // 2
    assert [row["version"] for row in rows] == ["first"] * half + ["second"] * half
    assert [row["loss"] for row in rows[:half]] == [row["loss"] for row in rows[half:]]
    assert all(row["ms"] > 0 for row in rows)
    assert "ratio" in done.stderr


def test_a_folder_without_the_package_is_refused(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, SCRIPT, tmp_path, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "holds no package contrapose" in done.stderr
