"""Cached files: where they are, that they are complete when they exist, and that nothing is left of processes that were killed."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from contrapose.lab.cached_files import CachedFile, Entry, cache_folder, cache_path, entry, is_intact, write_tensors

TENSORS = {
    "bytes": torch.arange(5, dtype=torch.uint8),
    "ids": torch.arange(7),
    "features": torch.randn(3, 4),
    "tokens": torch.arange(6, dtype=torch.int32).view(2, 3),
    "none": torch.empty(0, 4),
}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.safetensors"
    file = CachedFile(path, "this", pytest.fail)
    assert file.read() is None
    file.write(*(entry(name, tensor) for name, tensor in TENSORS.items()))
    kept = file.read()
    assert kept is not None
    assert kept.keys() == TENSORS.keys()
    assert all(torch.equal(kept[name], tensor) and kept[name].dtype == tensor.dtype for name, tensor in TENSORS.items())
    assert load_file(path).keys() == {*TENSORS, "checksum"}  # any reader of the format reads it
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    lines: list[str] = []
    assert CachedFile(path, "that", lines.append).read() is None
    assert lines == [f"cache: {path} was computed from other data or settings; it is computed again"]


def test_every_changed_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_tensors(path, [entry("ids", torch.arange(3))], {"fingerprint": "this"})
    content = path.read_bytes()
    assert is_intact(path)
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 16]) + content[place + 1 :])
        lines: list[str] = []
        assert CachedFile(path, "this", lines.append).read() is None
        assert lines == [f"cache: {path} is damaged, or was written by an earlier version; it is computed again"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_leaves_the_file_as_it_was(tmp_path: Path, error: BaseException) -> None:
    def blocks() -> Iterator[bytes]:
        yield bytes(4)
        raise error

    file = CachedFile(tmp_path / "a.safetensors", "this", pytest.fail)
    file.write(entry("ids", torch.arange(3)))
    with pytest.raises(type(error)):
        file.write(Entry("ids", "U8", (8,), blocks()))
    assert [one.name for one in tmp_path.iterdir()] == ["a.safetensors"]
    assert file.read() is not None


@pytest.mark.thorough
def test_a_killed_process_leaves_a_part_that_the_next_one_removes(tmp_path: Path) -> None:
    """A part that another process is writing stays."""
    code = f"""
import os, signal, sys
from pathlib import Path
from contrapose.lab.cached_files import Entry, write_tensors
def blocks():
    print("writing", flush=True)
    sys.stdin.readline()
    yield bytes(4)
    os.kill(os.getpid(), signal.SIGKILL)
write_tensors(Path({str(tmp_path / "a.safetensors")!r}), [Entry("ids", "U8", (8,), blocks())], {{}})
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        (part,) = tmp_path.iterdir()
        write_tensors(tmp_path / "a.safetensors", [entry("ids", torch.arange(3))], {})
        assert part.exists()
        process.stdin.write("\n")
        process.stdin.close()
        process.wait()
    assert part.exists()
    write_tensors(tmp_path / "a.safetensors", [entry("ids", torch.arange(3))], {})
    assert [one.name for one in tmp_path.iterdir()] == ["a.safetensors"]


def test_names_are_short_and_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTRAPOSE_CACHE", "/big")
    path = cache_path("tokens", "my pairs\udcff.tsv" + "x" * 255, ["key", "\udcff"])
    assert str(path.parent) == "/big/tokens"
    assert path.name.startswith("my_pairs_.tsvxxx")
    assert len(path.name) < 120
    assert path != cache_path("tokens", "my pairs\udcff.tsv" + "x" * 255, ["another key"])


def test_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    home = {"HOME": "/home/ada", "XDG_CACHE_HOME": "", "CONTRAPOSE_CACHE": ""}
    for change, expected in (
        ({}, "/home/ada/.cache/contrapose"),
        ({"XDG_CACHE_HOME": "/scratch"}, "/scratch/contrapose"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/ada/.cache/contrapose"),
        ({"XDG_CACHE_HOME": "/scratch", "CONTRAPOSE_CACHE": "/big"}, "/big"),
        ({"CONTRAPOSE_CACHE": "~/big"}, "/home/ada/big"),
        ({"CONTRAPOSE_CACHE": "big"}, str(tmp_path / "big")),
    ):
        for name, value in {**home, **change}.items():
            monkeypatch.setenv(name, value)
        assert str(cache_folder()) == expected
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as for a user without a home directory
    monkeypatch.setenv("CONTRAPOSE_CACHE", "")
    assert cache_folder() == Path("/~/.cache/contrapose")  # not in the working directory
