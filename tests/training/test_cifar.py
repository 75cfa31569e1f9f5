"""Real CIFAR-10, where a copy lies beside the checkout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from contrapose.training import Run, Trainer

SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "cifar10.tar").exists(), reason="no copy of CIFAR-10 here")
def test_two_epochs_of_cifar10(tmp_path: Path) -> None:
    target = tmp_path / "cifar10.npz"
    subprocess.run([sys.executable, str(SHARED / "unpack.py"), str(SHARED / "cifar10.tar"), str(target)], check=True)
    run = Run(data=str(target), views="simclr-cifar", epochs=2, batch=256, knn=20, knn_every=1, loss="dystress")
    trainer = Trainer(run, tmp_path / "run", say=lambda text: None)
    before = trainer.evaluate()["knn_top1"]
    after = trainer.train()["knn_top1"]
    assert len(trainer.split.train) == 50_000
    assert after > before + 5
