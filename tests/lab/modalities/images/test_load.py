"""A choice of classes: ImageNet-100 from a folder that has more of ImageNet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import error_message
from PIL import Image

from contrapose.lab.cli import main
from contrapose.lab.modalities.images.imagenet100 import IMAGENET100
from contrapose.lab.modalities.images.load import class_list, load
from contrapose.lab.training import PRESETS, prepare, preset
from contrapose.lab.training.run import Run

OTHERS = tuple(f"n{99_000_000 + i}" for i in range(5)) + tuple(f"n{i:08}" for i in range(5))


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like ImageNet's with 110 classes, 100 of them those of ImageNet-100."""
    folder = tmp_path_factory.mktemp("imagenet")
    for part in ("train", "val"):
        for number, name in enumerate((*IMAGENET100, *OTHERS)):
            (folder / part / name).mkdir(parents=True)
            Image.new("RGB", (8, 8), (number, 90, 90)).save(folder / part / name / f"{number}.JPEG")
    return folder


@pytest.mark.parametrize("stream", [False, True])
def test_only_the_classes_of_the_list_remain(imagenet: Path, stream: bool) -> None:
    split = prepare(Run(data=str(imagenet), classes="imagenet100", stream=stream, views="simclr-cifar", encoder="tiny"))
    for source in (split.train, split.test):
        assert source is not None
        assert source.labels is not None
        assert source.classes == tuple(sorted(IMAGENET100))
        assert source.labels.tolist() == list(range(100))  # one image of each, numbered anew
        assert [path.parent.name for path in source.paths] == sorted(IMAGENET100)
    assert len(load(str(imagenet)).train) == 110


def test_a_preset_of_imagenet100_trains_100_classes(imagenet: Path, tmp_path: Path) -> None:
    tiny = ["--views", "simclr-cifar", "--encoder", "tiny", "--batch", "50", "--epochs", "1", "--warmup", "0",
            "--precision", "fp32", "--metrics", "20"]  # fmt: skip
    main(["train", "--preset", "dystress/imagenet100", "--data", str(imagenet), *tiny, "--out", str(tmp_path / "run")])
    assert json.loads((tmp_path / "run" / "data.json").read_text())["images"] == 100


@pytest.mark.parametrize("name", [name for name in PRESETS if "imagenet100" in name])
def test_every_preset_of_imagenet100_has_its_classes(name: str) -> None:
    assert preset(name).classes == "imagenet100"


def test_data_check_shows_the_choice(imagenet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["data", "check", str(imagenet), "--classes", "imagenet100"])
    output = capsys.readouterr().out
    assert "train: 100 images, 100 classes of 1 to 1" in output
    assert "200 of 200 images can be read" in output


def test_classes_that_are_missing_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "mine" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "mine" / name / "0.png")
    (tmp_path / "mine" / "red fox").mkdir()
    (tmp_path / "names.txt").write_text("dog\nemu\n\nred fox\ngnu\n")
    assert class_list(str(tmp_path / "names.txt")) == ("dog", "emu", "red fox", "gnu")
    message = error_message(capsys, "data", "check", str(tmp_path / "mine"), "--classes", str(tmp_path / "names.txt"))
    assert f"classes: 2 of 4 have no folder under {tmp_path / 'mine'}: emu, gnu" in message
    (tmp_path / "names.txt").write_text("\n\n")
    with pytest.raises(ValueError, match=r"classes: expected a text file with one name per line, but .* has none"):
        load(str(tmp_path / "mine"), classes=str(tmp_path / "names.txt"))
    (tmp_path / "names.txt").write_text("dog\nred fox\n")
    with pytest.raises(ValueError, match=r"classes: 1 of 2 have no images in their folders under .*: red fox"):
        load(str(tmp_path / "mine"), classes=str(tmp_path / "names.txt"))
