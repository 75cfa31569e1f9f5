"""A stamp changes with the place, the size and the time of any file, and a missing file has one too."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from contrapose.lab.modalities.file_stamps import stamp_files
from contrapose.lab.modalities.tars import list_tar


def test_every_change_of_a_file_changes_the_stamp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "a.png", tmp_path / "b.png"
    for path in (first, second):
        path.write_bytes(b"12")
        os.utime(path, ns=(1, 1))
    stamps = [stamp_files([first, second])]
    monkeypatch.chdir(tmp_path)
    assert stamp_files([Path("a.png"), Path("b.png")]) == stamps[0]  # wherever the command is started
    stamps += [stamp_files([first]), stamp_files([second, first]), stamp_files([first, second], "text")]
    second.write_bytes(b"123")
    os.utime(second, ns=(1, 1))
    stamps.append(stamp_files([first, second]))
    os.utime(second, ns=(1, 2))
    stamps.append(stamp_files([first, second]))
    second.unlink()
    stamps.append(stamp_files([first, second]))
    assert len(set(stamps)) == len(stamps)


def test_members_of_a_tar(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("content")
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for name in "ab":
            tar.add(tmp_path / "a.txt", f"{name}.txt")
    members = list_tar(tmp_path / "x.tar").members
    before = stamp_files(members)
    assert stamp_files(members[:1]) != before
    os.utime(tmp_path / "x.tar", ns=(1, 1))
    assert stamp_files(members) != before
