"""The files of a run are found from any directory, and after the run, its data or both have moved."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import error_message
from PIL import Image

from contrapose.lab.cli import main
from contrapose.lab.training import Run, prepare
from contrapose.lab.training.sources import find_file

SMALL = ["--batch", "16", "--epochs", "1", "--knn", "3", "--metrics", "0"]


def write_images(path: Path, seed: int = 0, count: int = 40) -> None:
    """Write random images of three classes to an .npz file."""
    rng = np.random.default_rng(seed)
    images, labels = rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8), np.arange(count) % 3
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, train_images=images, train_labels=labels, test_images=images[:12], test_labels=labels[:12])


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with mine.npz and runs/mine, trained with relative paths in it."""
    folder = tmp_path / "project"
    write_images(folder / "mine.npz")
    monkeypatch.chdir(folder)
    main(["train", "--data", "mine.npz", *SMALL, "--out", "runs/mine"])
    assert json.loads(Path("runs/mine/run.json").read_text())["data"] == "mine.npz"
    return folder


def evaluate(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[float, str]:
    """Evaluate a run; return its accuracy and what was written to stderr."""
    capsys.readouterr()
    main(["evaluate", *arguments, "--baselines", "none"])
    captured = capsys.readouterr()
    return json.loads(captured.out)["knn_top1"], captured.err


def test_from_another_directory(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(project / "runs/mine")
    expected, _ = evaluate(capsys, run)
    monkeypatch.chdir(tmp_path)
    assert evaluate(capsys, run) == (expected, "")
    # Another data set of the same name in this directory is not the run's own.
    write_images(tmp_path / "mine.npz", seed=1)
    assert evaluate(capsys, run) == (expected, "")
    (project / "mine.npz").unlink()
    _, warning = evaluate(capsys, run)
    assert "data: the 40 images in mine.npz are not the 40 that" in warning
    (tmp_path / "mine.npz").unlink()
    message = error_message(capsys, "evaluate", run)
    assert f"data: mine.npz, which {run} was trained on, does not exist (looked in {tmp_path}, {project}, " in message
    assert message.endswith("give its path, or the path of other data, with --data\n")


@pytest.mark.thorough
def test_a_moved_run(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected, _ = evaluate(capsys, "runs/mine")
    moved = tmp_path / "elsewhere" / "moved"
    moved.parent.mkdir()
    shutil.move("runs/mine", moved)
    monkeypatch.chdir(tmp_path)
    assert evaluate(capsys, str(moved)) == (expected, "")
    main(["embed", str(moved), str(project / "mine.npz"), "-o", "out.npz"])
    main(["export", str(moved), "-o", "out.safetensors"])
    main(["map", str(moved), "--method", "pca", "--images", "12", "-o", "out.png"])
    # The same images under another path are the same run.
    main(["train", "--data", str(project / "mine.npz"), *SMALL, "--out", str(moved)])
    assert "finished at step 2" in capsys.readouterr().out
    assert json.loads((moved / "run.json").read_text())["data"] == "mine.npz"
    monkeypatch.chdir("/")
    assert evaluate(capsys, str(moved)) == (expected, "")  # found where it was when the run was resumed
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "other.npz", seed=1)
    message = error_message(capsys, "train", "--data", "other.npz", *SMALL, "--out", str(moved))
    assert f"data: the 40 images in other.npz are not the 40 that {moved} was trained on" in message


def test_a_moved_project(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected, _ = evaluate(capsys, "runs/mine")
    monkeypatch.chdir(tmp_path)
    project.rename(tmp_path / "renamed")
    assert evaluate(capsys, "renamed/runs/mine") == (expected, "")
    main(["map", "renamed/runs/mine", "--method", "pca", "--images", "12", "-o", "out.png"])


@pytest.mark.thorough
def test_initial_weights_are_found_or_not_needed(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["export", "runs/mine", "-o", "start.safetensors"])
    arguments = ["train", "--data", str(project / "mine.npz"), "--init", "start.safetensors", *SMALL]
    main([*arguments, "--out", "runs/second"])
    monkeypatch.chdir(tmp_path)
    main([*arguments, "--out", str(project / "runs/second")])  # resumes
    assert "finished at step 2" in capsys.readouterr().out
    (project / "start.safetensors").unlink()
    main(["evaluate", str(project / "runs/second")])  # a trained encoder does not need them any more
    assert "init: start.safetensors is not a file" in error_message(capsys, *arguments, "--out", "third")


@pytest.mark.thorough
def test_a_damaged_description_of_the_data(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for content in (b"{", b"[1]", b'{"images": "x"}', b"\xff\xfe\x00", b"null"):
        (project / "runs/mine/data.json").write_bytes(content)
        for command in (["evaluate", "runs/mine"], ["train", "--data", "mine.npz", *SMALL, "--out", "runs/mine"]):
            message = error_message(capsys, *command)
            assert "data.json is damaged" in message
            assert "delete the file and run the command again" in message


def test_a_name_is_not_taken_for_a_directory(tmp_path: Path) -> None:
    """--classes imagenet100 is a built-in list, even beside a data set of that name."""
    (tmp_path / "imagenet100").mkdir()
    (tmp_path / "names.txt").write_text("cat\n")
    assert find_file("imagenet100", tmp_path) == "imagenet100"
    assert find_file("names.txt", tmp_path) == str(tmp_path / "names.txt")
    assert find_file("", tmp_path) == ""


def test_a_run_in_a_directory_with_the_name_of_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["train", "--limit", "40", *SMALL, "--out", "runs/digits"])
    assert evaluate(capsys, "runs/digits")[1] == ""


@pytest.mark.thorough
@pytest.mark.parametrize("stream", [(), ("--stream", "--workers", "0")])
def test_images_replaced_under_their_names(
    stream: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    for i in range(40):
        path = tmp_path / "mine" / f"{'ab'[i % 2]}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(path)
    command = [
        "train",
        "--data",
        str(tmp_path / "mine"),
        *SMALL,
        "--views",
        "simclr-cifar",
        "--encoder",
        "tiny",
        *stream,
    ]
    command += ["--lr", "0.01", "--hold-out", "0.5", "--out", str(tmp_path / "run")]
    main(command)
    shutil.move(tmp_path / "mine", tmp_path / "moved")
    command[2] = str(tmp_path / "moved")
    main(command)  # the same files elsewhere
    assert "finished at step 1" in capsys.readouterr().out
    folder = tmp_path / "moved" / "a"
    for path in folder.glob("*.png"):
        path.write_bytes(next((tmp_path / "moved" / "b").glob("*.png")).read_bytes())
    message = error_message(capsys, *command)
    assert f"{folder}/" in message
    assert f"has changed since {tmp_path / 'run'} was trained on it" in message
    described = json.loads((tmp_path / "run" / "data.json").read_text())
    del described["sample"]  # as an earlier version wrote it
    (tmp_path / "run" / "data.json").write_text(json.dumps(described))
    main(command)


def test_embed_marks_the_images_that_a_run_held_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(40):
        pixels = np.random.default_rng(number).integers(0, 256, (32, 32, 3), dtype=np.uint8)
        folder = tmp_path / "mine" / f"class {number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    shutil.copytree("mine", "other")
    (tmp_path / "other" / "class 0" / "0.png").unlink()
    main(["train", "--data", "mine", *SMALL, "--out", "run"])
    held_out = set(prepare(Run.load(Path("run/run.json"))).held_out.paths)
    capsys.readouterr()
    main(["embed", "run", str(tmp_path / "mine"), "-o", "features.npz"])
    assert (
        "the run held out 8 of these 40 images and was trained on the others: see train_held_out"
        in capsys.readouterr().err
    )
    with np.load("features.npz") as arrays:
        marked = arrays["train_paths"][arrays["train_held_out"]]
    assert {Path(path).relative_to(tmp_path) for path in marked} == held_out
    main(["embed", "run", "other", "-o", "other.npz"])
    assert "train_held_out" not in np.load("other.npz")
