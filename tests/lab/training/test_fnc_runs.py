"""A run with FNC learns: its loss falls, and neighbours agree more often than before."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrapose.lab.training import Run, Trainer
from contrapose.lab.training.records.files import read_records


def quiet(text: str) -> None:
    return


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_fnc_learns_digits(tmp_path: Path) -> None:
    # A memory of one batch and a fast momentum encoder: there are only 64 steps.
    run = Run(
        data="digits",
        framework="fnc",
        loss="fnc",
        views="digits+local1",
        limit=1024,
        epochs=8,
        queue=128,
        momentum=0.5,
        knn=5,
    )
    trainer = Trainer(run, tmp_path, log=quiet)
    before = trainer.evaluate()["knn_top1"]
    after = trainer.train()["knn_top1"]
    records = read_records(tmp_path)
    print(f"kNN {before:.1f} -> {after:.1f} %, loss {records[0]['loss']:.2f} -> {records[-1]['loss']:.2f}")
    assert records[-1]["loss"] < 0.97 * records[0]["loss"]
    assert after >= before + 4
    assert records[-1]["attraction"] > 0  # computed with the support views of the last batch
