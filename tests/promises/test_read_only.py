"""What an ordinary user may not write is refused before training, in one line; what is only read may be read-only."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from conftest import Promise
from processes import start_command
from streaming import write_folder

SMALL = ["--limit", "32", "--batch", "16", "--epochs", "1", "--knn", "3", "--metrics", "0", "--baselines", "none"]


def become_ordinary_user(folder: Path) -> None:
    """Give up the capabilities of root, which may otherwise write everywhere, and enter a folder.

    The user stays the same, since another one might not be able to read the interpreter.
    """
    os.chdir(folder)
    if os.getuid() == 0:
        version_3 = (ctypes.c_uint32 * 2)(0x20080522, 0)  # of the system call, for this process
        assert ctypes.CDLL(None, use_errno=True).capset(version_3, (ctypes.c_uint32 * 6)()) == 0


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run a command as an ordinary user in a folder; return its exit code and its output."""
    output = folder.parent / "output"
    output.write_text("")
    process = start_command(list(arguments), output, before=partial(become_ordinary_user, folder))
    process.join(200)
    return process.exitcode, output.read_text()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that is protected in a test, and can be deleted after it."""
    (tmp_path / "read-only").mkdir()
    yield tmp_path / "read-only"
    for path in (tmp_path / "read-only").rglob("*"):
        path.chmod(0o755)


def protect(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)


def check_refusal(code: int, output: str, path: Path) -> None:
    lines = output.splitlines()
    assert code == 2, output
    assert lines[-1].startswith("contrapose: "), output
    assert str(path) in lines[-1], output
    assert "permission" in lines[-1], output
    assert "Traceback" not in output


@pytest.mark.thorough
def test_a_read_only_directory(folder: Path, promise: Promise) -> None:
    protect(folder)
    check_refusal(*run(folder, "train", *SMALL, "--out", str(folder / "run")), folder)
    promise.case()
    check_refusal(*run(folder, "train", *SMALL, "--out", str(folder)), folder)
    promise.case()


@pytest.mark.thorough
def test_a_run_that_has_become_read_only(folder: Path, promise: Promise) -> None:
    """It is not trained further, but evaluated."""
    writable = folder.parent / "writable"
    writable.mkdir()
    assert run(writable, "train", *SMALL, "--out", "run")[0] == 0
    shutil.copytree(writable / "run", folder / "run")
    before = sorted(path.name for path in folder.rglob("*"))
    protect(folder)
    check_refusal(*run(writable, "train", *SMALL, "--out", str(folder / "run")), folder / "run")
    promise.case()
    code, output = run(writable, "evaluate", str(folder / "run"))
    assert code == 0, output
    promise.case()
    assert sorted(path.name for path in folder.rglob("*")) == before


@pytest.mark.thorough
def test_data_that_are_read_only(folder: Path, promise: Promise) -> None:
    write_folder(folder / "mine")
    protect(folder)
    writable = folder.parent / "writable"
    writable.mkdir()
    for name, more in {"memory": [], "streamed": ["--stream"], "packed": ["--pack"]}.items():
        code, output = run(
            writable, "train", *SMALL, "--data", str(folder / "mine"), "--views", "simclr-cifar", *more, "--out", name
        )
        assert code == 0, output
        promise.case()
