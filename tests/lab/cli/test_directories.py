"""Directories that cannot be written to are refused in one line, before anything is computed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from commands import error_message

from contrapose.validate import check_directory

SMALL = ["--limit", "64", "--batch", "32", "--epochs", "1", "--knn", "3", "--metrics", "0"]


def test_a_file_in_place_of_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_text("")
    expected = f": {file} is a file, but a directory is needed; choose another --"
    for path in (file, file / "below" / "it"):
        assert f"out{expected}out" in error_message(capsys, "train", *SMALL, "--out", str(path))
        for command in (["demo"], ["compare", *SMALL], ["study", "run", "behaviour/figure2"]):
            assert f"--runs-dir{expected}runs-dir" in error_message(
                capsys, *command, "--runs-dir", str(path), "-o", str(tmp_path)
            )
            assert f"out{expected}out" in error_message(capsys, *command, "--runs-dir", str(tmp_path), "-o", str(path))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


CHECK = """
import os, sys
from pathlib import Path
from contrapose.validate import check_directory
if os.getuid() == 0:
    os.setuid(65534)
check_directory("out", Path(sys.argv[1]) / "new")
"""


@pytest.mark.thorough
def test_a_directory_of_another_user() -> None:
    """Checked in a process without the rights of root, who may write anywhere."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        shown = subprocess.run([sys.executable, "-c", CHECK, folder], capture_output=True, text=True, check=False)
    assert f"ValueError: out: no permission to write to {folder}; choose another --out" in shown.stderr


def test_files_that_cannot_be_read_or_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Any error of the operating system is one line with the path and the reason."""
    (tmp_path / "explain.png").mkdir()
    message = error_message(capsys, "explain", "simclr", "-o", str(tmp_path / "explain.png"))
    assert message == f"contrapose: {tmp_path / 'explain.png'}: is a directory\n"
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for command in (["evaluate", str(tmp_path / "loop")], ["train", *SMALL, "--out", str(tmp_path / "loop")]):
        assert error_message(capsys, *command).count("\n") == 1


def test_a_directory_that_can_be_created(tmp_path: Path) -> None:
    check_directory("out", tmp_path / "a" / "b")
    check_directory("out", Path())
    assert not (tmp_path / "a").exists()
