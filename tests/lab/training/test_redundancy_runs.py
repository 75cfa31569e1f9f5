"""Runs with a loss of redundancy: SimCLR's framework trains them, and the others refuse."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from contrapose.lab.training import Run, Trainer
from contrapose.lab.training.records.files import read_records

SETTINGS: dict[str, Any] = {
    "data": "digits", "limit": 256, "batch": 64, "epochs": 6, "width": 32, "lr": 0.002, "warmup": 0.5, "metrics": 100, "knn": 5, "knn_every": 6,
}  # fmt: skip
SLOW = ("vicreg", "w_mse", "zero_cl", "arb(group_size=8)")


def quiet(text: str) -> None:
    return


@pytest.mark.thorough
@pytest.mark.parametrize("loss", ["barlow_twins", *(pytest.param(loss, marks=pytest.mark.slow) for loss in SLOW)])
def test_the_loss_falls_on_digits(loss: str, tmp_path: Path) -> None:
    Trainer(Run(loss=loss, **SETTINGS), tmp_path, log=quiet).train()
    first, *_, last = read_records(tmp_path)
    assert last["loss"] < 0.98 * first["loss"]
    assert last["feature_std"] > 0.5  # 1 if the features are spread evenly, 0 if they have collapsed
    assert last["effective_rank"] > 5
    assert "repulsion" not in last  # there are no similarities


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_barlow_twins_learns_digits(tmp_path: Path) -> None:
    trainer = Trainer(Run(data="digits", loss="barlow_twins", limit=5000, epochs=4, metrics=0), tmp_path, log=quiet)
    before = trainer.evaluate()["knn_top1"]
    after = trainer.train()["knn_top1"]
    records = read_records(tmp_path)
    print(f"kNN {before:.1f} -> {after:.1f} %, loss {records[0]['loss']:.1f} -> {records[-1]['loss']:.1f}")
    assert records[-1]["loss"] < 0.7 * records[0]["loss"]
    assert after >= before + 5


@pytest.mark.parametrize(
    ("framework", "reason"),
    [
        ("moco", "takes embeddings, and moco offers pairs only"),
        ("memory-bank", "takes embeddings, and memory-bank offers pairs only"),
        ("moco-v3", "takes embeddings, and moco-v3 offers pairs only"),
        ("dino", "takes embeddings, and dino offers assignments only"),
    ],
)
def test_other_frameworks_refuse(framework: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"loss: vicreg {reason}; use --framework simclr")):
        Run(loss="vicreg", framework=framework)


def test_a_similarity_changes_nothing() -> None:
    with pytest.raises(ValueError, match="similarity: vicreg does not compare pairs, so dot has no effect"):
        Run(loss="vicreg", similarity="dot")
