"""Signals ask a training to stop, whatever a library does to their handlers."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from contrapose.lab.training.checkpoints import checkpoint

SCRIPT = """
import ctypes, os, signal, sys
from pathlib import Path
from contrapose.lab.training import Run, Trainer

def watch(progress):
    if progress.step == 1:  # as a compiler's library does, which Python does not see
        ctypes.CDLL(None).signal(signal.SIGTERM, 0)
    if progress.step == 3:
        os.kill(os.getpid(), signal.SIGTERM)

run = Run(limit=128, batch=16, epochs=1, metrics=0, knn=3)
Trainer(run, Path(sys.argv[1]), watch, lambda text: None).train()
"""


@pytest.mark.thorough
def test_a_handler_that_a_library_replaced_is_installed_again(tmp_path: Path) -> None:
    completed = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True)
    assert completed.returncode == 1, completed.stderr  # not -SIGTERM, which would have lost the step
    assert f"stopped by signal {int(signal.SIGTERM)} after step 3" in completed.stderr
    saved = checkpoint.latest(tmp_path / "checkpoints")
    assert saved is not None
    assert saved.step == 3
