"""Metrics of many embeddings hold no matrix of pairs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "metrics.py"


def measured(n: int, width: int) -> dict[str, float]:
    words = ["--only", "blocks", "--sizes", str(n), "--width", str(width), "--repeats", "1"]
    found: dict[str, float] = json.loads(subprocess.check_output([sys.executable, str(BENCHMARK), *words], text=True))
    return found


def test_the_matrix_is_never_there() -> None:
    assert measured(12_000, 16)["peak_mib"] < 0.5 * 12_000**2 * 4 / 2**20


@pytest.mark.slow
def test_fifty_thousand_in_two_gigabytes() -> None:
    assert measured(50_000, 512)["process_mib"] * 2**20 < 2e9
