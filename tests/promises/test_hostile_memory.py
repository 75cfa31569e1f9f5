"""No file makes us allocate more than the budget allows, whatever it claims to contain."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import hostile_files
import pytest
from conftest import Promise

from contrapose.lab.memory_budget import BUDGET

# MiB above what the imports take: the budget, and copies while a table or an image is read. The largest are images within
# `max_megapixels`, of which WebP's decoder keeps copies of its own.
LIMIT = 3 * BUDGET / 2**20
ADDRESSES = 6 * 2**30  # bytes that a case may reserve, so that a reader without a limit does not fill the machine
NEEDS_OPEN_CLIP = tuple(name for name in hostile_files.CASES if name.startswith("open_clip"))


def outcomes(names: tuple[str, ...]) -> dict[str, tuple[float, str]]:
    """Return each case's peak memory in MiB, and whether the file was read or refused."""
    command = [sys.executable, hostile_files.__file__, str(ADDRESSES), *names]
    paths = [str(Path(hostile_files.__file__).parent), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    printed = subprocess.run(command, text=True, env=environment, check=True, capture_output=True).stdout
    lines = map(json.loads, (line for line in printed.splitlines() if line.startswith("[")))
    return {name: (peak, outcome) for name, peak, outcome in lines}


@pytest.mark.thorough  # imports in another process take half a minute; tests/lab/test_memory_budget.py is quick
@pytest.mark.timeout(1200)
def test_a_hostile_file_takes_little_memory(promise: Promise) -> None:
    has_open_clip = find_spec("open_clip") is not None
    names = tuple(name for name in hostile_files.CASES if has_open_clip or name not in NEEDS_OPEN_CLIP)
    found = outcomes(names)
    assert len(found) == len(names)
    findings = []
    for name, (peak, outcome) in found.items():
        promise.case(peak)
        if peak > LIMIT or not outcome.startswith(("read", "refused: ")) or "allocate" in outcome:
            findings.append(f"{name}: {peak:,.0f} MiB, {outcome}")
    assert not findings, "\n".join(findings)
