"""One damaged file does not stop a study: what the checkpoint allows is done again, and the rest runs and is reported."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from contrapose.lab.cli import main
from contrapose.lab.studies import find
from contrapose.lab.studies.run_directory import RunDirectory

STUDY = "behaviour/equation6"
GARBAGE = {"half": b'{"half', "no text": b"\xff\xfe\x00", "deep": b"[" * 100_000, "a list": b"[1, 2]", "empty": b""}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("damaged")
    main(["study", "run", STUDY, "--runs-dir", str(root / "runs"), "-o", str(root / "reports")])
    return root / "runs"


def damage(run: Path, name: str, kind: str) -> None:
    path = run / name
    if kind == "without its last line":
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    elif kind == "a directory":
        path.unlink(missing_ok=True)
        path.mkdir()
    else:
        path.write_bytes(GARBAGE[kind])


CASES = [
    *((name, "deep") for name in ("records.jsonl", "failure.json", "run.json", "environment.json", "evaluations.json")),
    *(("run.json", kind) for kind in ("half", "a list")),
    ("evaluations.json", "no text"),
    ("environment.json", "a directory"),
    ("records.jsonl", "without its last line"),
    ("records.jsonl", "empty"),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_study_goes_on(
    name: str, kind: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished, tmp_path / "runs")
    first = next(iter(find(STUDY).plan("smoke").runs(1).values()))
    folder = tmp_path / "runs" / first.name
    records = RunDirectory(folder).records()
    damage(folder, name, kind)
    options = ["--runs-dir", str(tmp_path / "runs"), "-o", str(tmp_path / "reports")]
    main(["study", "report", STUDY, *options])
    page = (tmp_path / "reports" / "behaviour-equation6-smoke" / "index.html").read_text()
    assert (name.endswith(".jsonl")) or f"{name} " in page  # the file is named
    main(["study", "run", STUDY, *options])
    output = capsys.readouterr()
    assert "Traceback" not in output.err
    assert RunDirectory(folder).trained(first.epochs)
    again = RunDirectory(folder).records()
    assert {**again[-1], "seconds": 0} == {**records[-1], "seconds": 0}
