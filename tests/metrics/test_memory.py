"""Metrics of many embeddings never store the n × n matrix of similarities."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "metrics.py"


def run_benchmark(n: int, width: int) -> dict[str, float]:
    """Run the benchmark in a process of its own, so that the peak of its memory is not that of other tests."""
    arguments = ["--only", "blocks", "--sizes", str(n), "--width", str(width), "--repeats", "1"]
    output = subprocess.check_output([sys.executable, str(BENCHMARK), *arguments], text=True)
    record: dict[str, float] = json.loads(output)
    return record


@pytest.mark.thorough
def test_peak_memory_is_below_half_the_matrix() -> None:
    assert run_benchmark(12_000, 16)["peak_mib"] < 0.5 * 12_000**2 * 4 / 2**20


@pytest.mark.slow
def test_fifty_thousand_embeddings_fit_in_two_gigabytes() -> None:
    assert run_benchmark(50_000, 512)["process_mib"] * 2**20 < 2e9
