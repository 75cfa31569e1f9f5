"""Losses are timed in turns with other implementations, and the timings are written as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tyro
from loss_timing import TimeLosses


@pytest.mark.thorough
def test_losses_are_timed_next_to_other_implementations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "bench.json"
    arguments = ["--losses", "nt_xent", "--sizes", "16", "--only", "ours", "PyTorch", "--seconds", "0.01"]
    tyro.cli(TimeLosses, args=[*arguments, "--device", "cpu", "--out", str(out)])()
    assert "PyTorch" in capsys.readouterr().out
    rows = json.loads(out.read_text())["rows"]
    assert [row["who"] for row in rows] == ["ours", "PyTorch"]
    assert all(row["ms"] > 0 and row["tflops"] >= 0 and row["mib"] >= 0 for row in rows)
    with pytest.raises(ValueError, match="did you mean 'nt_xent'"):
        TimeLosses(losses=("ntxent",))()
