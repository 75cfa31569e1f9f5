"""Bad files in a folder of images: each is named in one line by every command, and left out only with --skip-broken."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from streaming import streamed_run, write_folder

from contrapose.lab.cli import main
from contrapose.lab.modalities.images.image_shards import write_shards
from contrapose.lab.training import Trainer

TRAINING = ["--views", "simclr-cifar", "--encoder", "tiny", "--batch", "16", "--epochs", "1", "--lr", "0.01"]
TRAINING += ["--metrics", "0", "--knn", "2", "--baselines", "none"]
WAYS = {"memory": (), "streamed": ("--stream", "--workers", "0")}


def truncated(path: Path) -> None:
    Image.effect_noise((64, 64), 50).save(path)
    path.write_bytes(path.read_bytes()[:900])


def bomb(path: Path) -> None:
    """Write a small PNG file whose header declares 30,000 × 30,000 pixels."""
    Image.new("1", (8, 8)).save(path)
    content = bytearray(path.read_bytes())
    content[16:24] = (30_000).to_bytes(4, "big") * 2
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    path.write_bytes(content)


Case = tuple[str, Callable[[Path], Any], str]
BROKEN: dict[str, Case] = {
    "truncated": ("x.jpg", truncated, "truncated"),
    "bomb": ("x.png", bomb, "more than 178 megapixels"),
    "empty": ("x.jpg", Path.touch, "the file is empty"),
    "text": ("x.jpg", lambda path: path.write_text("not an image"), "its content is none of PNG, JPEG"),
    "pipe": ("x.jpg", os.mkfifo, "it is not a regular file"),
    "link": ("x.jpg", lambda path: path.symlink_to("nothing"), "it is a link to a file that does not exist"),
    "loop": ("x.jpg", lambda path: path.symlink_to("x.jpg"), "Too many levels of symbolic links"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "mine")


def train(folder: Path, *options: str) -> None:
    main(["train", "--data", str(folder), *TRAINING, *options, "--out", str(folder.parent / "run")])


@pytest.mark.timeout(60)  # a pipe without a writer would block forever
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_named_in_one_line(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, write, reason = BROKEN[name]
    path = folder / "train" / "cat" / file
    write(path)
    with pytest.raises(SystemExit):
        main(["data", "check", str(folder)])
    (line,) = (line for line in capsys.readouterr().out.splitlines() if str(path) in line)
    assert line.startswith(f"{path}: ")
    assert reason in line
    for options in WAYS.values():
        with pytest.raises(SystemExit):
            train(folder, *options)
        (line,) = capsys.readouterr().err.splitlines()
        assert f"image 20, {path}, cannot be read: " in line
        assert reason in line
        assert "--skip-broken leaves such files out" in line


@pytest.mark.timeout(60)
@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", BROKEN)
def test_it_is_left_out_on_request(name: str, way: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, write, reason = BROKEN[name]
    write(folder / "train" / "cat" / file)
    train(folder, *WAYS[way], "--skip-broken")
    output = capsys.readouterr().out
    (line,) = (line for line in output.splitlines() if file in line)
    assert line.startswith("data: 1 broken file is left out")
    assert reason in line
    assert "40 images of mine" in output


@pytest.mark.parametrize("way", WAYS)
def test_files_are_recognised_by_their_content(way: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A PNG file named .jpg and a JPEG file named .png train; so do images in a folder named .jpg, with a note."""
    for name, image_format in (("png.jpg", "PNG"), ("jpeg.png", "JPEG")):
        Image.effect_noise((40, 30), 50).save(folder / "train" / "cat" / name, image_format)
    (folder / "train" / "dog" / "x.jpg").mkdir()
    Image.effect_noise((30, 40), 50).save(folder / "train" / "dog" / "x.jpg" / "inside.png")
    train(folder, *WAYS[way])
    output = capsys.readouterr().out
    assert "43 images of mine" in output
    note = f"data: dog/x.jpg/ under {folder / 'train'} is a folder, in spite of the ending; only images inside are read"
    assert note in output.splitlines()


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.thorough)])
@pytest.mark.parametrize(("stored", "reason"), [("files", "it does not exist"), ("tars", "it ends inside")])
def test_a_file_that_disappears_during_training(
    stored: str, reason: str, workers: int, folder: Path, tmp_path: Path
) -> None:
    data = folder
    if stored == "tars":
        data = tmp_path / "tars"
        write_shards(folder, data, images_per_file=40)

    def remove(progress: Any) -> None:
        if progress.step == 2:  # the last step of the first epoch
            for path in (folder / "train" / "cat").iterdir():
                path.unlink()
            for path in tmp_path.glob("tars/train*"):
                os.truncate(path, 5000)

    trainer = Trainer(streamed_run(data), tmp_path / "run", on_step=remove, log=lambda text: None, workers=workers)
    with pytest.raises(ValueError, match=rf"^data: image \d+, .*, cannot be read: .*{reason}.*$"):
        trainer.train()


def test_a_tar_that_ends_early_is_named_in_one_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tars = tmp_path / "tars"
    write_shards(folder, tars, images_per_file=40)
    main(["data", "check", str(tars / "train-000000.tar")])
    assert "40 of 40 images can be read" in capsys.readouterr().out  # also for a tar that is not in a folder of tars
    os.truncate(tars / "train-000000.tar", 100_000)
    commands = [["data", "check", str(tars)]]
    commands += [
        ["train", "--data", str(tars), *TRAINING, *way, "--out", str(tmp_path / "run")] for way in WAYS.values()
    ]
    for command in commands:
        with pytest.raises(SystemExit):
            main(command)
        (line,) = capsys.readouterr().err.splitlines()
        assert "train-000000.tar is cut off or damaged after" in line
    main([*commands[1], "--skip-broken", "--batch", "4"])
    output = capsys.readouterr()
    assert "train-000000.tar is cut off or damaged after" in output.out + output.err
    assert "its complete files are used" in output.out + output.err
    with pytest.raises(SystemExit):  # what was listed with --skip-broken is not believed without it
        main(["data", "check", str(tars)])
