"""`train --pack`: a folder is packed once, later runs find the copy, and results are those of a run in memory."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from streaming import write_folder

from contrapose.lab.cli import main
from contrapose.lab.modalities import DataSettings
from contrapose.lab.modalities.images import decoding
from contrapose.lab.modalities.images.modality import IMAGES
from contrapose.lab.modalities.images.packed import PackedImages
from contrapose.lab.modalities.images.views import Views
from contrapose.lab.training.sources import describe_data

VIEWS = Views.named("simclr-cifar", size=16)
TRAINING = [
    "--views",
    "simclr-cifar",
    "--size",
    "16",
    "--encoder",
    "tiny",
    "--batch",
    "16",
    "--epochs",
    "1",
    "--lr",
    "0.01",
]
TRAINING += ["--metrics", "0", "--knn", "2", "--baselines", "none"]


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataSettings:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CONTRAPOSE_CACHE", "cache")  # relative to the working directory at that time
    write_folder(tmp_path / "mine")
    return DataSettings(data="mine")


def pack(settings: DataSettings) -> list[str]:
    return list(IMAGES.pack_to_cache(settings, VIEWS))


def copies() -> list[Path]:
    return sorted(Path("cache/packed").resolve().glob("*.safetensors"))


CHANGES: list[dict[str, object]] = [
    {},
    {"limit": 10},
    {"classes": "names.txt"},
    {"eval_data": "other"},
    {"skip_broken": True},
    {"imbalance": "exponential:2"},
    {"data": "mine/train"},  # without test images
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_packed_copy_is_the_folder_in_memory(change: dict[str, object], settings: DataSettings) -> None:
    write_folder(Path("other"))
    Path("names.txt").write_text("dog\ncat\n")
    if "skip_broken" in change:
        Path("mine/train/cat/broken.jpg").symlink_to("nothing")
    settings = replace(settings, **change)  # type: ignore[arg-type]
    expected = IMAGES.load(settings, None, VIEWS)
    (line,) = pack(settings)
    (path,) = copies()
    assert line == f"packing the images of {settings.data} once, to {path}"
    split = IMAGES.load(settings, None, VIEWS)
    assert split.notes == (
        *expected.notes,
        f"data: read from the packed copy {path}, {path.stat().st_size / 1e6:,.1f} MB",
    )
    assert isinstance(split.train, PackedImages)
    for one, other in ((split.train, expected.train), (split.probe, expected.probe), (split.test, expected.test)):
        assert torch.equal(one.pixels, other.pixels)  # type: ignore[union-attr]
        assert torch.equal(one.labels, other.labels)  # type: ignore[union-attr, arg-type]
        assert one.name == other.name  # type: ignore[union-attr]
        assert [path.resolve() for path in one.paths] == [path.resolve() for path in other.paths]  # type: ignore[union-attr]
    assert (split.probe is split.train) == (expected.probe is expected.train)
    assert describe_data(split, "mine") == describe_data(expected, "mine")  # so either resumes the other


def test_a_copy_is_found_and_a_changed_folder_packed_again(
    settings: DataSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(settings)
    with monkeypatch.context() as patch:  # nothing is decoded a second time
        patch.setattr(decoding, "open_image", lambda *a, **k: pytest.fail("decoded"))
        assert pack(settings) == []
        assert len(IMAGES.load(settings, None, VIEWS).train) == 40
    Path("mine/train/cat/0.png").write_bytes(Path("mine/train/cat/1.png").read_bytes())
    split = IMAGES.load(settings, None, VIEWS)
    assert not isinstance(split.train, PackedImages)
    assert (
        split.notes[-1]
        == f"data: {copies()[0]}, a packed copy, is out of date or damaged and not used; --pack writes it again"
    )
    assert len(pack(settings)) == 1
    assert len(copies()) == 1  # in the place of the old one
    assert isinstance(IMAGES.load(settings, None, VIEWS).train, PackedImages)
    pack(replace(settings, hold_out=0.5))
    list(IMAGES.pack_to_cache(settings, Views.named("simclr-cifar", size=24)))
    assert len(copies()) == 3
    assert not isinstance(IMAGES.load(replace(settings, stream=True), None, VIEWS).train, PackedImages)


def test_damaged_copies_are_not_used(settings: DataSettings) -> None:
    pack(settings)
    (path,) = copies()
    content = path.read_bytes()
    pixels = IMAGES.load(settings, None, VIEWS).train.pixels.clone()  # type: ignore[attr-defined]
    flipped = content[:-9999] + bytes([content[-9999] ^ 1]) + content[-9998:]
    for damaged in (content[:-1], content[:100], b"", flipped):
        path.write_bytes(damaged)
        assert not isinstance(IMAGES.load(settings, None, VIEWS).train, PackedImages)
        assert len(pack(settings)) == 1
        assert torch.equal(IMAGES.load(settings, None, VIEWS).train.pixels, pixels)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stream": True}, "pack: --stream crops views from whole images"),
        ({"data": "digits"}, "pack: only a folder of images can be packed, got digits"),
    ],
)
def test_what_cannot_be_packed(change: dict[str, object], message: str, settings: DataSettings) -> None:
    with pytest.raises(ValueError, match=message):
        pack(replace(settings, **change))  # type: ignore[arg-type]
    assert not Path("cache").exists()


def test_a_cache_folder_that_cannot_be_written(settings: DataSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTRAPOSE_CACHE", "/proc/contrapose")
    (line,) = pack(settings)
    assert line.startswith("cache: /proc/contrapose/packed/mine-16-")
    assert "cannot be written (" in line
    assert len(IMAGES.load(settings, None, VIEWS).train) == 40


def test_a_full_disk(settings: DataSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(
        ValueError, match=r"pack: 80 images of 16 × 16 pixels need 0.0 GB, but .*/cache/packed has 0.0 GB"
    ):
        pack(settings)
    assert copies() == []


def test_a_run_with_a_packed_copy_has_the_same_weights_and_name(
    settings: DataSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    results = set()
    for number, options in enumerate([(), ("--pack",), ("--pack",), ()]):
        main(["train", "--data", "mine", *TRAINING, *options])
        output = capsys.readouterr().out
        assert ("packing the images of mine once" in output) == (number == 1)
        assert (f"read from the packed copy {Path.cwd()}/cache/packed/mine-16-" in output) == (number > 0)
        (folder,) = (path for path in Path("runs").iterdir() if path.is_dir())
        (tensors,) = folder.glob("checkpoints/*/tensors.safetensors")
        results.add((folder.name, tensors.read_bytes()))
        folder.rename(f"moved-{number}")
    assert len(results) == 1


@pytest.mark.thorough
def test_killed_while_packing(settings: DataSettings) -> None:
    """A kill leaves a part, which is not read; the next command packs, and two at the same time pack once."""
    code = """
import os, signal, sys
from contrapose.lab.cli import main
from contrapose.lab.modalities.images import packed
if sys.argv[1] == "kill":
    whole = packed.whole
    def until_killed(*arguments, **options):
        yield from whole(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)
    packed.whole = until_killed
main(["train", "--data", "mine", *sys.argv[2:], "--pack"])
"""

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, *arguments[:1], *TRAINING, *arguments[1:]]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    killed = start("kill", "--out", "a")
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert copies() == []
    assert [path.suffix for path in Path("cache/packed").iterdir() if path.stat().st_size] == [".part"]
    both = [start("train", "--out", name) for name in "ab"]
    outputs = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert sorted("packing the images" in output for output in outputs) == [False, True]
    assert all("read from the packed copy" in output for output in outputs)
    assert not list(Path("cache/packed").glob(".*.part"))
