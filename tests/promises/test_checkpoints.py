"""A valid checkpoint remains after a failure at any point of a write, or any later damage; nothing is pickled."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import pickle
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Promise

from contrapose.lab.networks.foreign import convert
from contrapose.lab.training.checkpoints import checkpoint
from contrapose.lab.training.checkpoints.checkpoint import Checkpoint, latest, read, save, write

SOURCE = Path(checkpoint.__file__).parents[3]


def state(step: int) -> Checkpoint:
    tensors = {"a": torch.full((50,), float(step)), "b": torch.tensor(step)}
    return Checkpoint(step, tensors, {"epoch": step, "step": step, "seconds": 0.5})


def quiet(text: str) -> None:
    pass


def test_round_trip_keeps_the_last_two(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, state(step))
    loaded = latest(tmp_path)
    assert loaded is not None
    assert loaded.step == 3
    assert torch.equal(loaded.tensors["a"], torch.full((50,), 3.0))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]
    assert latest(tmp_path / "nothing") is None


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["disk full", "killed"]
)
def test_a_failure_at_every_call_of_a_write(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, promise: Promise
) -> None:
    """open, fsync, mkdir and rename in turn fail at their k-th call."""
    for target, name in ((os, "fsync"), (Path, "open"), (Path, "rename"), (Path, "mkdir"), (os, "open")):
        for k in range(1, 9):
            folder = tmp_path / f"{name}-{target.__name__}-{k}"
            save(folder, state(1))
            calls, real = [0], getattr(target, name)

            def failing(
                *args: object, calls: list[int] = calls, real: object = real, k: int = k, **more: object
            ) -> object:
                calls[0] += 1
                if calls[0] == k:
                    raise error
                return real(*args, **more)  # type: ignore[operator]

            with monkeypatch.context() as patched:
                patched.setattr(target, name, failing)
                try:
                    save(folder, state(2))
                    finished = True
                except BaseException:
                    finished = False
            loaded = latest(folder, quiet)
            assert loaded is not None
            assert loaded.step in (1, 2)
            assert torch.equal(loaded.tensors["a"], torch.full((50,), float(loaded.step)))
            if finished:
                assert loaded.step == 2
            save(folder, state(3))  # the next checkpoint is written normally
            after = latest(folder, quiet)
            assert after is not None
            assert after.step == 3
            promise.case()


def test_a_damaged_checkpoint_is_detected_and_the_previous_one_used(tmp_path: Path, promise: Promise) -> None:
    rng = random.Random(0)
    save(tmp_path, state(1))
    save(tmp_path, state(2))
    for name in ("tensors.safetensors", "checkpoint.json"):
        path = tmp_path / "step-00000002" / name
        whole = path.read_bytes()
        for _ in range(30):
            damaged = bytearray(whole)
            if rng.random() < 0.5:
                damaged = damaged[: rng.randrange(len(whole))]
            else:
                damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
            path.write_bytes(bytes(damaged))
            loaded = latest(tmp_path, quiet)
            assert loaded is not None
            assert loaded.step == 1
            assert loaded.record == {"epoch": 1, "step": 1, "seconds": 0.5}
            assert float(loaded.tensors["a"][0]) == loaded.tensors["b"].item()
            promise.case()
        path.write_bytes(whole)


@pytest.mark.parametrize(
    "change",
    [
        {"step": 3},
        {"step": 2.0},
        {"record": {"epoch": 2, "step": 2, "seconds": 0.0}},
        {"record": None},
        {"format": 1},
        {"format": None},
        {"format": 3},
        {"comment": "another key"},
    ],
    ids=str,
)
def test_everything_in_a_checkpoint_is_inside_its_hash(
    change: dict[str, Any], tmp_path: Path, promise: Promise
) -> None:
    """A changed value is detected, even if the directory is renamed with it; None removes the value."""
    save(tmp_path, state(1))
    folder = save(tmp_path, state(2))
    description = json.loads((folder / "checkpoint.json").read_bytes()) | change
    kept = {name: value for name, value in description.items() if value is not None}
    (folder / "checkpoint.json").write_text(json.dumps(kept))
    folder.rename(tmp_path / f"step-{int(kept['step']):08d}")
    loaded = latest(tmp_path, quiet)
    assert loaded is not None
    assert loaded.step == 1
    promise.case()


def test_the_name_of_a_directory_must_agree(tmp_path: Path) -> None:
    save(tmp_path, state(1))
    save(tmp_path, state(2)).rename(tmp_path / "step-00000005")
    loaded = latest(tmp_path, quiet)
    assert loaded is not None
    assert loaded.step == 1
    write(tmp_path / "kept" / "epoch-3", Checkpoint(6, {"a": torch.zeros(1)}, {"epoch": 3}))
    assert read(tmp_path / "kept" / "epoch-3") is not None
    (tmp_path / "kept" / "epoch-3").rename(tmp_path / "kept" / "epoch-4")
    assert read(tmp_path / "kept" / "epoch-4") is None


def test_a_checkpoint_of_a_newer_version(tmp_path: Path) -> None:
    """Training must not start over beside weights that another version can read."""
    folder = save(tmp_path, state(1))
    description = json.loads((folder / "checkpoint.json").read_bytes())
    (folder / "checkpoint.json").write_text(json.dumps(description | {"format": 9}))
    with pytest.raises(
        ValueError, match=r"step-00000001 has format 9, .* reads only formats up to 2; upgrade contrapose"
    ):
        latest(tmp_path, quiet)


def test_a_damaged_checkpoint_of_this_version_is_not_taken_for_a_newer_one(tmp_path: Path) -> None:
    folder, said = save(tmp_path, state(1)), list[str]()
    (folder / "tensors.safetensors").write_bytes(b"damaged")
    assert latest(tmp_path, said.append) is None
    assert said == [f"{folder} is damaged; trying the checkpoint before it"]


def test_an_exhausted_machine_is_not_taken_for_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the training would go on from an older checkpoint, and delete this one."""

    def fail(description: object, payload: bytes) -> str:
        raise MemoryError

    folder = save(tmp_path, state(1))
    monkeypatch.setattr(checkpoint, "_digest", fail)
    with pytest.raises(MemoryError):
        read(folder)


def test_the_hash_is_that_of_earlier_versions(tmp_path: Path) -> None:
    """Another order of the keys would make every checkpoint that exists a damaged one."""
    folder = save(tmp_path, Checkpoint(7, {}, {"epoch": 1, "step": 7}))
    described = b'{"format": 2, "record": {"epoch": 1, "step": 7}, "step": 7}\n'
    payload = (folder / "tensors.safetensors").read_bytes()
    sha256 = hashlib.sha256(described + payload).hexdigest()
    assert json.loads((folder / "checkpoint.json").read_bytes())["sha256"] == sha256


def test_only_a_damaged_checkpoint_is_written_again(tmp_path: Path) -> None:
    tensors = save(tmp_path, state(1)) / "tensors.safetensors"
    file = tensors.stat().st_ino
    save(tmp_path, state(1))
    assert tensors.stat().st_ino == file
    tensors.write_bytes(b"damaged")
    assert read(save(tmp_path, state(1))) is not None


def test_a_write_leaves_no_file_open_and_other_files_alone(tmp_path: Path) -> None:
    (tmp_path / ".step-notes").write_text("a file, which no write has left")
    before = os.listdir("/proc/self/fd")
    save(tmp_path, state(1))
    assert os.listdir("/proc/self/fd") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [".step-notes", "step-00000001"]


class Hostile:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os.mkdir, ("executed",))


def test_a_pickle_is_never_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, promise: Promise) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "c", state(1))
    save(tmp_path / "c", state(2))
    (tmp_path / "c" / "step-00000002" / "tensors.safetensors").write_bytes(pickle.dumps(Hostile()))
    loaded = latest(tmp_path / "c", quiet)
    assert loaded is not None
    assert loaded.step == 1
    assert not (tmp_path / "executed").exists()
    promise.case()


def test_a_hostile_pth_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, promise: Promise) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.pth").write_bytes(pickle.dumps(Hostile()))
    torch.save({"state_dict": {"conv1.weight": Hostile()}}, tmp_path / "zip.pth")
    for name in ("plain.pth", "zip.pth"):
        with pytest.raises(ValueError, match="it was not read"):
            convert(tmp_path / name)
        promise.case()
    assert not (tmp_path / "executed").exists()


def unsafe_code(code: str) -> list[str]:
    """Return what in a module could execute the content of a file, or a shell's command; texts of messages are not code."""
    unsafe = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            unsafe += [f"import {alias.name}" for alias in node.names if alias.name == "pickle"]
        elif isinstance(node, ast.ImportFrom) and node.module == "pickle":
            unsafe.append("import pickle")
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            unsafe += [name] if name in ("eval", "exec", "yaml.load", "torch.load") else []
            for keyword in node.keywords:
                if keyword.arg in ("shell", "allow_pickle") and ast.unparse(keyword.value) != "False":
                    unsafe.append(f"{keyword.arg}={ast.unparse(keyword.value)}")
    return sorted(unsafe)


def test_the_source_has_no_unsafe_calls(promise: Promise) -> None:
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        allowed = []
        if path.name == "foreign.py":  # the only reader of foreign files
            allowed = ["torch.load"]
            assert text.count("torch.load(") == text.count("weights_only=True") == 1
        if path.name == "weights.py":  # it writes pickles for detectron2, which reads nothing else, and reads none
            allowed = ["import pickle"]
            assert re.findall(r"\bpickle\.\w+", text) == ["pickle.dump"]
        assert unsafe_code(text) == allowed, path
        promise.case()


def test_unsafe_calls_are_noticed() -> None:
    code = "import pickle\nx = eval('1')\ntorch.load(p)\nrun(c, shell=True)\nnp.load(p, allow_pickle=yes)\nm.eval()\n'exec(x)'"
    assert unsafe_code(code) == ["allow_pickle=yes", "eval", "import pickle", "shell=True", "torch.load"]
