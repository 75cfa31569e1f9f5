"""Damaged, foreign and hostile files of a run are refused in one line that says what is wrong."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import error_message
from safetensors.torch import load_file, save_file

from contrapose.lab.cli import main
from contrapose.lab.studies.measures import LinearProbe
from contrapose.lab.studies.run_directory import RunDirectory
from contrapose.lab.training import Run, Trainer, load
from contrapose.lab.training.checkpoints import checkpoint

SMALL = ["--limit", "64", "--batch", "32", "--epochs", "1", "--knn", "3", "--metrics", "0"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one epoch. Tests restore what they damage."""
    folder = tmp_path_factory.mktemp("damage") / "run"
    Trainer(Run(limit=64, batch=32, epochs=1, knn=3, metrics=0), folder, log=lambda text: None).train()
    return folder


def change(**settings: Any) -> Callable[[dict[str, Any]], bytes]:
    return lambda description: json.dumps(description | settings).encode()


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda d: json.dumps(d).encode()[:40], "it is not JSON"),
        (lambda d: b"", "it is not JSON"),
        (lambda d: b"\x93NUMPY\x01\x00\xff", "it is not JSON"),
        (lambda d: b"[1, 2]", "expected an object, got list"),
        (lambda d: b"{}", "missing settings: accumulate, batch"),
        (lambda d: b"[" * 100_000, "it is not JSON"),
        (change(colour="red"), "unknown settings: colour"),
        (change(epochs="many"), "epochs: expected a whole number, got 'many'"),
        (change(epochs=True), "epochs: expected a whole number, got True"),
        (change(lr=float("nan")), "lr: expected a finite number, got nan"),
        (change(loss=3), "loss: expected a text, got 3"),
        (change(data=["a"]), "data: expected a text, got ['a']"),
        (change(stream="no"), "stream: expected True or False, got 'no'"),
        (change(milestones=["x"]), "milestones: expected a list of whole numbers, got ['x']"),
        (change(milestones=3), "milestones: expected a list of whole numbers, got 3"),
        (change(encoder="resnet"), "encoder: expected one of"),
    ],
)
def test_a_damaged_description(
    damage: Callable[[dict[str, Any]], bytes], expected: str, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trained / "run.json"
    whole = path.read_bytes()
    path.write_bytes(damage(json.loads(whole)))
    try:
        for command in (["evaluate", str(trained)], ["train", *SMALL, "--out", str(trained)]):
            message = error_message(capsys, *command)
            assert message.count("\n") == 1
            assert message.startswith(f"contrapose: run: {path} does not describe a run: ")
            assert expected in message
            assert "restore it from a copy, or train again with another --out" in message
    finally:
        path.write_bytes(whole)


def test_a_directory_in_place_of_the_description(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.json").mkdir()
    assert "run.json cannot be read: Is a directory" in error_message(capsys, "evaluate", str(tmp_path))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"encoder": "resnet18"}, "encoder is 'resnet18': missing"),
        ({"width": 64}, "width is 64: "),
        ({"head": "hcl"}, "head is 'hcl': missing"),
        ({"head": "linear"}, "head is 'linear': missing"),
    ],
)
def test_settings_that_do_not_fit_the_weights(
    settings: dict[str, Any], expected: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "checkpoints").symlink_to(trained / "checkpoints")
    (run / "run.json").write_bytes(change(**settings)(json.loads((trained / "run.json").read_text())))
    for command in (["evaluate", str(run)], ["export", str(run), "-o", str(tmp_path / "out.safetensors")]):
        message = error_message(capsys, *command)
        assert message.count("\n") == 1
        assert "run.json does not fit the weights of step 2: " in message
        assert expected in message
    options = [f"--{name}={value}" for name, value in settings.items()]
    message = error_message(capsys, "train", *SMALL, *options, "--out", str(run))
    assert "the checkpoint of step 2" in message
    assert "does not fit the run's settings" in message


def test_missing_extra_and_mistyped_tensors(trained: Path, tmp_path: Path) -> None:
    saved = checkpoint.latest(trained / "checkpoints")
    assert saved is not None
    name = next(key for key in saved.tensors if key.startswith("state.network.encoder.") and key.endswith("weight"))
    (tmp_path / "run.json").write_bytes((trained / "run.json").read_bytes())
    changed = (
        {key: tensor for key, tensor in saved.tensors.items() if key != name},
        {**saved.tensors, "state.network.encoder.extra": torch.zeros(1)},
        {**saved.tensors, name: saved.tensors[name].to(torch.int8)},
    )
    for step, (tensors, expected) in enumerate(
        zip(changed, ("missing", "unexpected extra", "torch.int8"), strict=True)
    ):
        checkpoint.save(tmp_path / "checkpoints", checkpoint.Checkpoint(step + 1, tensors))
        with pytest.raises(
            ValueError, match=f"does not fit the weights of step {step + 1}: encoder is 'tiny': .*{expected}"
        ):
            load(tmp_path)


def safetensors_bytes(header: object, payload: bytes = b"\x00" * 16) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + payload


HOSTILE = {
    "empty": b"",
    "huge header": struct.pack("<Q", 2**62) + b"{}",
    "not JSON": struct.pack("<Q", 4) + b"\xff\xff\xff\xff",
    "overlapping": safetensors_bytes(
        {
            "a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
            "b": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]},
        }
    ),
    "outside": safetensors_bytes({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}),
    "unknown type": safetensors_bytes({"a": {"dtype": "F31", "shape": [4], "data_offsets": [0, 16]}}),
    "wrong size": safetensors_bytes({"a": {"dtype": "F64", "shape": [4], "data_offsets": [0, 16]}}),
    "a list": safetensors_bytes([1, 2]),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_weights(kind: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = tmp_path / "start.safetensors"
    start.write_bytes(HOSTILE[kind])
    message = error_message(capsys, "train", *SMALL, "--init", str(start), "--out", str(tmp_path / "run"))
    assert message.count("\n") == 1
    assert f"init: {start} is not a .safetensors file" in message
    assert not (tmp_path / "run").exists()
    # As a checkpoint with a correct checksum: it is skipped, and there is none before it.
    folder = tmp_path / "hostile" / "checkpoints" / "step-00000009"
    folder.mkdir(parents=True)
    (folder / "tensors.safetensors").write_bytes(HOSTILE[kind])
    digest = hashlib.sha256(HOSTILE[kind]).hexdigest()
    (folder / "checkpoint.json").write_text(json.dumps({"step": 9, "sha256": digest}))
    (tmp_path / "hostile" / "run.json").write_bytes((trained / "run.json").read_bytes())
    assert "has no checkpoint that can be read" in error_message(capsys, "evaluate", str(tmp_path / "hostile"))


def test_initial_weights_of_another_type(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = tmp_path / "start.safetensors"
    main(["export", str(trained), "-o", str(start)])
    tensors = load_file(start)
    name = next(name for name, tensor in tensors.items() if tensor.is_floating_point())
    save_file({**tensors, name: tensors[name].to(torch.int32)}, start)
    message = error_message(capsys, "train", *SMALL, "--init", str(start), "--out", str(tmp_path / "run"))
    assert f"does not fit the encoder: {name} has the type torch.int32 instead of torch.float32" in message


def test_foreign_files_among_the_checkpoints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are neither read nor deleted, and do not count as checkpoints."""
    folder = tmp_path / "checkpoints"
    for name in ("step-zzz", "step-99999999x", "backup"):
        (folder / name).mkdir(parents=True)
    (folder / "step-00000007").write_text("a file")
    for step in (1, 2, 3):
        checkpoint.save(folder, checkpoint.Checkpoint(step, {"a": torch.full((2,), float(step))}))
    saved = checkpoint.latest(folder)
    assert saved is not None
    assert saved.step == 3
    names = {"step-zzz", "step-99999999x", "backup", "step-00000007", "step-00000002", "step-00000003"}
    assert {path.name for path in folder.iterdir()} == names
    assert capsys.readouterr().out == ""
    (folder / "step-00000003").rename(folder / "step-00000008")  # not the step that its description has
    saved = checkpoint.latest(folder, lambda text: None)
    assert saved is not None
    assert saved.step == 2


def test_damaged_results_of_a_study(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    for name in ("evaluations.json", "failure.json", "environment.json", "run.json"):
        (tmp_path / name).write_bytes(b'{"half')
    assert directory.evaluations() == {}  # evaluated again
    assert "evaluations.json is damaged: it is not JSON; run the study again" in LinearProbe("cacr").missing_reason(
        directory
    )
    assert [Path(text.split(" is ")[0]).name for text in directory.damaged_files()] == [
        "run.json", "environment.json", "evaluations.json", "failure.json",
    ]  # fmt: skip
    assert directory.failure() == "failure.json cannot be read"
    assert directory.environment() == directory.settings() == {}


def test_what_a_killed_write_left_is_swept(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also in a finished run, which writes no further checkpoint."""
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    for name in ("checkpoints/.step-00000004.123", "kept/.epoch-1.123"):
        (run / name).mkdir(parents=True)
        (run / name / "tensors.safetensors").write_bytes(b"half")
    Trainer(Run.load(run / "run.json"), run).train()
    assert not [path for path in run.rglob(".*") if path.is_dir()]


def test_a_width_beyond_the_memory_is_refused(trained: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "run"))
    path = folder / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"width": 2**31 - 1}))
    with pytest.raises(
        ValueError, match=rf"^run: the network that {path} describes (cannot be built|would take)"
    ) as error:
        load(folder, device="cpu")
    assert "\n" not in str(error.value)
