"""The comparison with sentence-transformers' trainer runs, and reports both."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest
import sentences

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "sentence_training.py"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of the host's trainer
def test_both_trainers_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(f"q{i % 12} p{i // 12}" for i in range(96)) + "\n")
    sentences.bert(dropout=0.1).save_pretrained(str(tmp_path / "model"))
    options = ["--batch", "8", "--length", "8", "--steps", "4", "--rounds", "1", "--precision", "fp32"]
    out = tmp_path / "speed.jsonl"
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(texts), str(tmp_path / "model"), *options, "--out", str(out)])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    machine, ours, theirs, ratio = map(json.loads, out.read_text().splitlines())
    assert (machine["batch"], ours["trainer"], theirs["trainer"]) == (8, "contrapose", "sentence-transformers")
    assert ratio["ratio"] == pytest.approx(ours["tokens_per_second"] / theirs["tokens_per_second"], abs=1e-3)
