"""Only one process at a time works in a run's directory, whichever path leads to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def train(out: str, epochs: int, where: Path) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "contrapose",
        "train",
        "--limit",
        "64",
        "--batch",
        "32",
        "--knn",
        "3",
        "--metrics",
        "0",
    ]
    return subprocess.Popen(
        [*command, "--epochs", str(epochs), "--out", out], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=where
    )  # fmt: skip


def test_a_link_or_a_relative_path_leads_to_the_same_lock(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (tmp_path / "link").symlink_to(run)
    first = train(str(run), 10_000, tmp_path)
    try:
        while not (run / "records.jsonl").exists():
            assert first.poll() is None
            time.sleep(0.05)
        for out, where in (("link", tmp_path), (".", run), ("../run/../link", run)):
            second = train(out, 10_000, where)
            _, message = second.communicate(timeout=120)
            assert second.returncode == 2, message
            assert f"another process is training in {os.path.normpath(out) if out == '.' else out}" in message
    finally:
        first.send_signal(signal.SIGTERM)
        first.communicate(timeout=120)
    assert first.returncode == 143
