"""The measurement of large batches of captions takes the same step in both ways, and reports both."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "large_caption_batches.py"
SMALL = "--batch 8 --micro-batch 2 --text-encoder tiny --size 32 --steps 1 --precision fp32"


def run_script(options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *options.split()])
    runpy.run_path(str(SCRIPT), run_name="__main__")


@pytest.mark.thorough
def test_both_ways_are_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    # Without batch norm, so that both have the same loss.
    run_script(f"{SMALL} --encoder timm:test_vit", monkeypatch)
    machine, parts, whole = map(json.loads, capsys.readouterr().out.splitlines())
    assert (machine["batch"], machine["micro_batch"]) == (8, 2)
    assert (parts["way"], whole["way"]) == ("micro-batches", "one batch")
    assert parts["loss"] == pytest.approx(whole["loss"], rel=1e-4)
    for record in (parts, whole):
        assert record["fits"]
        assert record["seconds"] > 0
        assert record["memory_gb"] > 0


def test_unequal_micro_batches_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_script("--batch 10 --micro-batch 4", monkeypatch)
    assert "--batch: expected a multiple of --micro-batch 4, got 10" in capsys.readouterr().err
