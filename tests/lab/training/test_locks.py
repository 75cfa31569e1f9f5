"""Only one process at a time works in a run's directory, whichever path leads to it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import error_message

SETTINGS = ["--limit", "64", "--batch", "32", "--knn", "3", "--metrics", "0", "--epochs", "10000"]


@pytest.mark.thorough
def test_a_link_or_a_relative_path_leads_to_the_same_lock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (tmp_path / "link").symlink_to(run)
    command = [sys.executable, "-m", "contrapose", "train", *SETTINGS, "--out", str(run)]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not (run / "records.jsonl").exists():
            assert first.poll() is None
            time.sleep(0.05)
        for out, where in (("link", tmp_path), (".", run), ("../run/../link", run)):
            monkeypatch.chdir(where)
            assert f"another process is training in {out}" in error_message(capsys, "train", *SETTINGS, "--out", out)
    finally:
        first.send_signal(signal.SIGTERM)
        first.wait(timeout=120)
    assert first.returncode == 143
