"""A trackio run is in the local database, has the settings as its configuration, and is continued on resume."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from contrapose.lab.training import Run

pytest.importorskip("trackio", reason="needs the extra `trackio`", exc_type=ImportError)
# In a process of its own: trackio reads TRACKIO_DIR when it is imported.
SCRIPT = """
import json
import os
import sys
from pathlib import Path
from contrapose.lab.training import Run
from contrapose.lab.training.records.recorder import Recorder

def hook(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "subprocess.Popen"):
        print(event, arguments)

folder, segments, end = sys.argv[1:]
sys.addaudithook(hook)
for start, steps in json.loads(segments):
    recorder = Recorder(Path(folder), ["trackio"], print)
    recorder.resume(Run(), start)
    for step in steps:
        recorder.append({"epoch": step // 4, "step": step, "loss": 1 / step, "seconds": 0.5})
    if end == "killed":
        os.kill(os.getpid(), 9)
    recorder.close()
"""
Segments = list[tuple[int, list[int]]]  # the step after which a run is resumed, and the steps of its records


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the database, of a user with a token, for whom trackio would ask Hugging Face for the name."""
    for name, value in {"TRACKIO_DIR": "trackio", "HF_HOME": "hf"}.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    monkeypatch.setenv("HF_TOKEN", "hf_none")
    (tmp_path / "mine").mkdir()
    return tmp_path / "trackio" / "contrapose.db"


def train(folder: Path, segments: Segments, end: str = "closed") -> list[str]:
    """Write the records of a run and of its continuations; return the lines that were printed."""
    command = [sys.executable, "-c", SCRIPT, str(folder), json.dumps(segments), end]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == (-9 if end == "killed" else 0), result.stderr
    return result.stdout.splitlines()


def query(database: Path, statement: str) -> list[Any]:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(statement).fetchall()


@pytest.mark.thorough
def test_a_resumed_run_continues_the_same_run(database: Path, tmp_path: Path) -> None:
    lines = train(tmp_path / "mine", [(0, [4, 8]), (4, [8, 12])])
    name = f"mine-{json.loads((tmp_path / 'mine' / 'trackio.json').read_text())['id']}"
    assert lines == [f"trackio: to see the curves of {name}: trackio show --project contrapose"] * 2
    points = query(database, "select run_name, step, metrics from metrics order by step")
    assert [(run, step) for run, step, _ in points] == [(name, 4), (name, 8), (name, 12)]
    assert json.loads(points[1][2]) == {"epoch": 2, "loss": 0.125, "seconds": 0.5}
    ((settings,),) = query(database, "select config from configs")
    assert Run().describe().items() <= json.loads(settings).items()


@pytest.mark.thorough
def test_records_that_a_killed_run_had_not_written(database: Path, tmp_path: Path) -> None:
    """trackio writes twice a second; what it lacked when it was killed is added from records.jsonl."""
    train(tmp_path / "mine", [(0, [4, 8])], "killed")
    train(tmp_path / "mine", [(8, [12])])
    assert query(database, "select step from metrics order by step") == [(4,), (8,), (12,)]


@pytest.mark.thorough
def test_a_database_that_cannot_be_written(database: Path, tmp_path: Path) -> None:
    database.parent.touch()  # a file in place of the directory
    (line,) = train(tmp_path / "mine", [(0, [4])])
    assert line.startswith("trackio failed and shows no further records: [Errno 17] File exists")
