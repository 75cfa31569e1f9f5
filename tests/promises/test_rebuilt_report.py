"""A report that is deleted and rebuilt from the same runs has the same bytes, also in another process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Promise

RUNS = Path(__file__).parents[2] / "results" / "runs"
SCRIPT = """
import sys
from pathlib import Path
from contrapose.lab.report.render import write
from contrapose.lab.studies import find
from contrapose.lab.studies.collect import document
write(document([find(sys.argv[1]).plan(sys.argv[2])], 1, Path(sys.argv[3])), Path(sys.argv[4]))
"""


def build(study: str, folder: Path, seed: int) -> dict[str, bytes]:
    """Write a report in a new process, with other hashes of strings, and return its files."""
    environment = os.environ | {"PYTHONHASHSEED": str(seed)}
    subprocess.run([sys.executable, "-c", SCRIPT, study, "small", str(RUNS), str(folder)], env=environment, check=True)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "study",
    [
        "behaviour/figure4",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("behaviour/figure5", "behaviour/figure9", "balanced/figure5")
        ),
    ],
)
def test_a_rebuilt_report_has_the_same_bytes(study: str, tmp_path: Path, promise: Promise) -> None:
    files = build(study, tmp_path / "report", 1)
    assert {"index.html", "index.md"} < files.keys()
    shutil.rmtree(tmp_path / "report")
    assert build(study, tmp_path / "report", 2) == files
    for _ in files:
        promise.case()
