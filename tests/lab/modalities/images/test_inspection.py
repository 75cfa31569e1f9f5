from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from mixed_folder import CLASSES, make_mixed_folder
from PIL import Image

from contrapose.lab.cli import main
from contrapose.lab.modalities.images.inspection import inspect, summary
from contrapose.lab.modalities.images.load import load


def test_a_mixed_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_mixed_folder(tmp_path / "mine", each=32, corrupt=True, empty=True, text=True)
    with pytest.raises(SystemExit) as exit_info:
        main(["data", "check", str(folder)])
    assert exit_info.value.code == 1
    captured = capsys.readouterr()
    assert captured.err == ""
    for line in (
        "are held out for evaluation; --hold-out changes the share",
        "shorter side: 8 to ",
        "kinds: RGB (48), palette (24), alpha (16), 16-bit (16), CMYK (16), gray (8)",
        "PNG (32)",
        "TIFF (24), WEBP (16), GIF (16), BMP (8)",
        "rotated by their EXIF data: 8",
        "warning: 4 images are smaller than a quarter of the median of",
        "with 8 × 8",
        "warning: 4 images with an aspect ratio of 4:1 or more",
        "with 2000 × 30",
        "corrupt.jpg: OSError: image file is truncated",
        "empty.png: the file is empty",
        "text.jpg: its content is none of PNG",
        "128 of 131 images can be read",
        "leave the broken files out with --skip-broken",
    ):
        assert line in captured.out, captured.out


def test_duplicates_and_small_classes(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    for part in ("train", "test"):
        for label, name in enumerate(CLASSES):
            (folder / part / name).mkdir(parents=True)
            for i in range(2 if (part, name) == ("train", "discs") else 12):
                colour = (20 * i, 60 * label, 200 if part == "test" else 0)
                Image.new("RGB", (40, 40), colour).save(folder / part / name / f"{i}.png")
    assert inspect(load(str(folder))).warnings == ("1 class with very few training images, for example discs with 2",)
    shutil.copy(folder / "train" / "checks" / "0.png", folder / "test" / "checks" / "leak.png")
    shutil.copy(folder / "train" / "checks" / "1.png", folder / "train" / "vertical" / "other.png")
    shutil.copy(folder / "train" / "checks" / "2.png", folder / "train" / "checks" / "again.png")
    inspection = inspect(load(str(folder)))
    leak, contradiction, twice = inspection.warnings[1:]
    assert leak.startswith(
        "1 group of files with the same content in both training and test images, so scores will be too high"
    )
    assert "leak.png" in leak
    assert contradiction.startswith("1 group of files with the same content in several classes")
    assert "other.png" in contradiction
    assert twice.startswith("2 groups of files with the same content in the training images several times")
    assert summary(inspection.files)[1] == "sizes: 40 × 40 (89)"
    assert not inspection.problems
