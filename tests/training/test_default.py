"""`contrapose train` without arguments, the first command of a new user."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from contrapose.evaluation import KNN
from contrapose.modalities.images.images import Images
from contrapose.training import Run, Trainer


@pytest.mark.slow
def test_the_default_run_learns_digits(tmp_path: Path) -> None:
    completed = subprocess.run(
        [sys.executable, "-m", "contrapose", "train"], cwd=tmp_path, capture_output=True, text=True
    )
    assert completed.returncode == 0, completed.stderr
    (folder,) = (tmp_path / "runs").glob("*/")
    trained = json.loads((folder / "records.jsonl").read_text().splitlines()[-1])["knn_top1"]
    untrained = Trainer(Run(), tmp_path / "untrained", say=lambda text: None)
    probe, test = untrained.split.probe, untrained.split.test
    assert isinstance(probe, Images)
    assert isinstance(test, Images)
    assert probe.labels is not None
    assert test.labels is not None
    raw = KNN(20)(probe.pixels.flatten(1) / 255, probe.labels, test.pixels.flatten(1) / 255, test.labels)["top1"]
    print(f"trained {trained:.2f}, untrained {untrained.evaluate()['knn_top1']:.2f}, raw pixels {raw:.2f}")
    assert trained >= raw + 25
    assert trained >= untrained.evaluate()["knn_top1"] + 25
