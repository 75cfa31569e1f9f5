"""`contrapose data check` on images with captions shows what training would use, and what looks wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from captioned import write_folder, write_tars
from commands import error_message, printed_lines


def check(path: Path, capsys: pytest.CaptureFixture[str], *options: str, code: int = 0) -> list[str]:
    """Return the lines that `data check` prints; it exits with this code."""
    return printed_lines(capsys, "data", "check", str(path), *options, code=code)


@pytest.mark.parametrize("write", [write_folder, write_tars])
def test_images_with_captions(
    write: Callable[[Path], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "mine")
    assert check(folder, capsys) == [
        "train: 10 images with 25 captions",
        "test:  2 images with 5 captions",
        "captions per image: 2 to 3",
        "length of captions: 2 to 5 words, median 3",
        "shorter side: 16 to 16 pixels, median 16",
        "sizes: 16 × 16 (12)",
        "kinds: RGB (12)",
        "formats: PNG (12)",
        "12 of 12 images can be read",
        f"train with: contrapose train --data {folder}",
    ]


def test_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path / "mine")
    images, captions = folder / "images", folder / "captions.tsv"
    with captions.open("a") as file:
        file.write("lost.png\ta lost caption\ttrain\n00.png\t\ttrain\n01.png\ta red square\ttrain\n")
        file.write(f"01.png\t{'long ' * 40}\ttrain\n")
    (images / "extra.png").write_bytes((images / "03.png").read_bytes())
    (images / "11.png").write_bytes((images / "05.png").read_bytes())  # a training image among the test images
    lines = check(folder, capsys)
    for expected in (
        "data: captions without an image are left out: 1 of 33 (lost.png)",
        "data: images without a caption are left out: 1 of 13 (images/extra.png)",
        "data: empty captions are left out: 1 (line 33 of captions.tsv)",
        "warning: captions of more than 32 tokens, which are truncated unless --text-length allows more: at least 1",
        "warning: captions of several images, which are then not negatives of each other: 1, for example 'a red square' of 2 "
        "images",
    ):
        assert expected in lines
    assert "both training and test images" in "".join(lines)
    assert lines[-1] == f"train with: contrapose train --data {folder}"


def test_what_training_would_refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path / "mine")
    (folder / "images" / "02.png").write_text("not an image")
    lines = check(folder, capsys, code=1)
    assert lines[-3:] == [
        "11 of 12 images can be read",
        "train, evaluate and embed leave the broken files out with --skip-broken",
        f"train with: contrapose train --data {folder} --skip-broken",
    ]
    with (folder / "captions.tsv").open("a") as file:
        file.write("01.png\ta green square\tsideways\n")
    lines = check(folder, capsys, code=1)
    assert lines[-2].startswith("training would stop with: data: ")
    assert "has the split 'sideways', expected train, val or test" in lines[-2]
    assert "train: 10 images with 25 captions" in lines  # the rest is described all the same
    (folder / "captions.tsv").write_text("image\tcaption\nnothing.png\ta caption\n")
    assert "has no image with a caption" in error_message(capsys, "data", "check", str(folder))


def test_held_out_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path / "mine")
    rows = [line.rpartition("\t")[0] for line in (folder / "captions.tsv").read_text().splitlines()]
    (folder / "captions.tsv").write_text("\n".join(rows) + "\n")
    lines = check(folder, capsys)
    assert lines[0] == "2 of 12 images are held out, to measure retrieval (--hold-out)"
    assert lines[1].startswith("train: 10 images with ")
