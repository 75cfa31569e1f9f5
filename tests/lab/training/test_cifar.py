"""Train on the real CIFAR-10, if a copy of it is next to the checkout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from contrapose.lab.training import Run, Trainer

SHARED = Path(__file__).parents[4] / "shared" / "data"


@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "cifar10.tar").exists(), reason="needs a copy of CIFAR-10")
def test_two_epochs_of_cifar10(tmp_path: Path) -> None:
    target = tmp_path / "cifar10.npz"
    subprocess.run([sys.executable, str(SHARED / "unpack.py"), str(SHARED / "cifar10.tar"), str(target)], check=True)
    run = Run(data=str(target), views="simclr-cifar", epochs=2, batch=256, knn=20, knn_every=1, loss="dystress")
    trainer = Trainer(run, tmp_path / "run", log=lambda text: None)
    before = trainer.evaluate()["knn_top1"]
    after = trainer.train()["knn_top1"]
    assert len(trainer.split.train) == 50_000
    assert after > before + 5
