"""Names of any bytes are accepted in every modality, and what is printed or written escapes those that are not UTF-8."""

from __future__ import annotations

import io
import json
import os
import random
from contextlib import redirect_stdout, suppress
from pathlib import Path

import pytest
from captioned import COLOURS, png
from conftest import Promise
from fuzzing import mutate, write_tar

from contrapose.lab.cli import main
from contrapose.lab.evaluation.detection import draw_shapes, read_detection_data
from contrapose.lab.modalities import DataSettings, modality, recognise

COUNTS = [4, pytest.param(60, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
TRAIN = [
    "--epochs",
    "1",
    "--batch",
    "4",
    "--encoder",
    "tiny",
    "--metrics",
    "0",
    "--knn",
    "1",
    "--hold-out",
    "0.4",
    "--out",
    "runs/it",
]
IMAGES = [*TRAIN, "--views", "simclr-cifar", "--size", "16"]
CAPTIONS = [*TRAIN, "--views", "captions", "--size", "16"]


def file_name(rng: random.Random) -> str:
    """Return the name of a file that the system allows, mostly one that is not UTF-8."""
    name = mutate("né\udce9\udcffme".encode(errors="surrogateescape"), rng).replace(b"/", b"").replace(b"\0", b"")[:80]
    return "x" + os.fsdecode(name).replace(".", "")


def class_folders(name: str) -> tuple[str, list[str]]:
    """A folder, a class and an image with this name."""
    for number, colour in enumerate(COLOURS):
        folder = Path(name) / (name if number % 2 else "other")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}{number}.png").write_bytes(png(colour))
    return name, IMAGES


def captions(name: str) -> tuple[str, list[str]]:
    """A folder with this name, and an image without a caption."""
    (Path(name) / "images").mkdir(parents=True)
    for colour in COLOURS:
        (Path(name) / "images" / f"{colour}.png").write_bytes(png(colour))
    (Path(name) / "images" / f"{name}.png").write_bytes(png("red"))
    (Path(name) / "captions.tsv").write_text("image\tcaption\n" + "".join(f"{c}.png\ta {c} wall\n" for c in COLOURS))
    return name, CAPTIONS


def tar_of_captions(name: str) -> tuple[str, list[str]]:
    """A tar with this name, whose members have it too."""
    described = [(f"{name}{c}.json", json.dumps({"caption": f"a {c} wall"}).encode()) for c in COLOURS]
    Path(f"{name}.tar").write_bytes(write_tar([(f"{name}{c}.png", png(c)) for c in COLOURS] + described))
    return f"{name}.tar", CAPTIONS


def tar_of_classes(name: str) -> tuple[str, list[str]]:
    images = [(f"{name}{c}.png", png(c)) for c in COLOURS]
    Path(f"{name}.tar").write_bytes(
        write_tar(images + [(f"{name}{c}.cls", b"%d" % (n % 2)) for n, c in enumerate(COLOURS)])
    )
    return f"{name}.tar", IMAGES


def texts(name: str) -> tuple[str, list[str]]:
    Path(f"{name}.txt").write_text("".join(f"{colour} and {other}\n" for colour in COLOURS for other in COLOURS))
    return f"{name}.txt", ["--epochs", "1", "--batch", "4", "--encoder", "tiny", "--out", "runs/it"]


LAYOUTS = {made.__name__: made for made in (class_folders, captions, tar_of_captions, tar_of_classes, texts)}


def run(*arguments: str) -> str:
    """Run a command; return what it prints to a terminal in en_US.UTF-8, which refuses what is not UTF-8."""
    terminal = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="strict", write_through=True)
    with redirect_stdout(terminal), suppress(SystemExit):
        main(list(arguments))
    return terminal.buffer.getvalue().decode()


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_data_of_any_name_is_checked(
    layout: str,
    count: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    promise: Promise,
) -> None:
    rng = random.Random(layout)
    for number, name in enumerate(["n\udce9", *(file_name(rng) for _ in range(count))]):
        (tmp_path / str(number)).mkdir()
        monkeypatch.chdir(tmp_path / str(number))
        path, _ = LAYOUTS[layout](name)
        assert "train with: contrapose train --data" in run("data", "check", path), name
        promise.case()


@pytest.mark.thorough
@pytest.mark.parametrize("layout", LAYOUTS)
def test_data_of_any_name_is_trained_on(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, promise: Promise
) -> None:
    """And evaluated, exported, converted and shown on pages."""
    monkeypatch.chdir(tmp_path)
    path, options = LAYOUTS[layout]("n\udce9")
    run("train", "--data", path, *options)
    query = str(next(Path(path).rglob("*.png"))) if layout == "class_folders" else "a wall"
    if layout != "tar_of_classes":  # which has no file to ask for
        assert "page search.html" in run("search", "runs/it", query)
    assert "written to out" in run("export", "runs/it", "-o", "out" if layout == "texts" else "out.safetensors")
    assert "n\\udce9" in Path("out/README.md" if layout == "texts" else "out.safetensors.md").read_text()
    if layout == "class_folders":
        assert "train with:" in run("data", "convert", path, "-o", "tars")
        assert Path("tars/classes.txt").read_text().splitlines() == ["n\\udce9", "other"]
    promise.case()


def test_a_broken_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, promise: Promise) -> None:
    monkeypatch.chdir(tmp_path)
    path, _ = class_folders("n\udce9")
    (tmp_path / "n\udce9/other/n\udce9_.png").write_bytes(b"no image")
    printed = run("data", "check", path)
    assert "n\\udce9/other/n\\udce9_.png: its content is none of" in printed
    assert "train with: contrapose train --data 'n\\udce9' --skip-broken" in printed
    promise.case()


def test_detection_reads_any_name(tmp_path: Path, promise: Promise) -> None:
    """The lists are UTF-8, so that only folders have other names; JSON can name any file."""
    for layout in ("voc", "coco"):
        data = read_detection_data(draw_shapes(tmp_path / f"{layout}\udce9", layout=layout, train=2, test=2, size=40))
        assert data.train[0][0].shape == (3, 40, 40)
        promise.case()
    image = tmp_path / "coco\udce9/train2017/000000.jpg"
    image.rename(image.with_name("n\udce9.jpg"))
    path = tmp_path / "coco\udce9/annotations/instances_train2017.json"
    path.write_text(path.read_text().replace("000000.jpg", "n\\udce9.jpg"))
    assert len(read_detection_data(tmp_path / "coco\udce9").train) == 2
    path.write_text(path.read_text().replace("n\\udce9.jpg", "n\\ud800.jpg"))
    with pytest.raises(ValueError, match=r"train2017/n.\.jpg does not exist, but .*instances_train2017.json lists it"):
        read_detection_data(tmp_path / "coco\udce9")
    promise.case()


@pytest.mark.parametrize(
    "half", ['{"caption": "\\ud800"}', '{"caption": "a wall", "split": "\\ud800"}', '{"\\ud800": 1}']
)
def test_half_a_surrogate_pair_in_a_tar(
    half: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, promise: Promise
) -> None:
    """JSON may have one, but no text is made of it: the sample is refused by name, or skipped."""
    monkeypatch.chdir(tmp_path)
    described = [(f"{c}.json", json.dumps({"caption": f"a {c} wall"}).encode()) for c in list(COLOURS)[1:]]
    members = [(f"{c}.png", png(c)) for c in COLOURS] + [("red.json", half.encode()), *described]
    Path("x.tar").write_bytes(write_tar(members))
    printed = run("data", "check", "x.tar")
    assert (
        "training would stop with: data: x.tar/red.json has half of a surrogate pair, which is not a character"
        in printed
    )
    assert "train with: contrapose train --data x.tar --skip-broken" in printed
    promise.case()


@pytest.mark.parametrize("kind", ["a pipe", "an endless device"])
@pytest.mark.parametrize(
    "name", ["x.txt", "x.tsv", "x.jsonl", "x.parquet", "x.csv.gz", "x.npz", "x.safetensors", "x.tar"]
)
def test_what_never_ends_is_refused(name: str, kind: str, tmp_path: Path, promise: Promise) -> None:
    path = tmp_path / name
    if kind == "a pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    settings = DataSettings(data=str(path))
    with pytest.raises(ValueError, match=rf"{name} cannot be read: it is not a regular file|{name} names do not exist"):
        list(modality(recognise(settings.data)).inspect(settings))
    promise.case()
