"""The benchmark of mining measures ways that find the same negatives."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "mining.py"


def run_script(options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *options.split()])
    runpy.run_path(str(SCRIPT), run_name="__main__")


def test_all_ways_are_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run_script("--documents 700 --queries 300 --width 16 --k 3 --repeats 1 --device cpu", monkeypatch)
    about, *records = map(json.loads, capsys.readouterr().out.splitlines())
    assert (about["documents"], about["queries"], about["k"]) == (700, 300, 3)
    by_way = {record["way"]: record for record in records}
    assert {"mine", "mine, without copies", "mine, margin", "torch"} <= by_way.keys()
    assert by_way["mine"]["ratio"] == 1
    assert by_way["torch"]["same"] > 0.99
    assert by_way["mine, without copies"]["same"] == 1
    assert 0 < by_way["mine, margin"]["same"] < 1  # some queries are closer to other documents than to their own
    assert all(record["seconds"] > 0 for record in records)


def test_more_queries_than_documents_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run_script("--documents 10 --queries 20", monkeypatch)
    assert "--queries: expected at most --documents 10, got 20" in capsys.readouterr().err
