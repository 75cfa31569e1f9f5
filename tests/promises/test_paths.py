"""No setting and no name inside an archive leads outside of the directory of runs."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from conftest import Promise
from PIL import Image

from contrapose.lab.cli import main
from contrapose.lab.modalities.captions.files import open_captions
from contrapose.lab.modalities.images.archive import read_archive
from contrapose.lab.modalities.images.stream import Files
from contrapose.lab.modalities.images.views import Views
from contrapose.lab.training import Run

SMALL = ["--limit", "64", "--batch", "32", "--epochs", "1", "--knn", "3", "--metrics", "0"]
HOSTILE = ("../../outside", "/tmp/absolute", "line\nend\x1b[2J", "\udcff")


def test_nothing_is_written_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, promise: Promise) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    main(["train", *SMALL, "--loss", "simclr#/../../../x"])
    (run,) = (path for path in Path("runs").iterdir() if path.is_dir())
    assert run.name.startswith("digits16-simclr-")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]
    promise.case()


@pytest.mark.parametrize("text", [*HOSTILE, "..", ".", "a\\b", "~", "$(x)", "con", "x" * 200])
def test_a_name_of_a_run_is_one_directory(text: str, promise: Promise) -> None:
    """Whatever the data or the loss is called."""
    runs = [Run(data=text, views="digits", encoder="tiny", epochs=1, batch=2, lr=0.1)]
    runs += [Run(loss=f"simclr  # {text}")] if text.isprintable() else []
    for run in runs:
        assert Path(run.name).name == run.name
        assert run.name.isprintable()
        assert len(run.name.encode()) < 255
        promise.case()


def picture(name: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (24, 24), (len(name), 0, 0)).save(file, "JPEG")
    return file.getvalue()


def write_tar(path: Path) -> None:
    with tarfile.open(path, "w") as tar:
        for name in HOSTILE:
            for ending, content in ((".jpg", picture(name)), (".txt", b"x")):
                member = tarfile.TarInfo(name + ending)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("9.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)


def test_members_of_a_tar_are_not_extracted(tmp_path: Path, promise: Promise) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    write_tar(tmp_path / "a" / "b" / "hostile.tar")
    before = sorted(tmp_path.rglob("*"))
    opened = open_captions(tmp_path / "a" / "b" / "hostile.tar")
    assert [str(image).isprintable() for image in opened.images] == [True] * len(HOSTILE)
    assert opened.images[2].name == r"line\nend\x1b[2J.jpg"
    Files("hostile", opened.images, None).in_memory(Views.named("simclr-cifar"))
    assert sorted(tmp_path.rglob("*")) == before
    promise.case()


def test_members_of_a_zip_are_not_extracted(tmp_path: Path, promise: Promise) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    path = tmp_path / "a" / "b" / "hostile.npz"
    np.savez(path, train_images=np.zeros((4, 8, 8), np.uint8))
    with zipfile.ZipFile(path, "a") as archive:
        for name in HOSTILE[:3]:
            archive.writestr(f"{name}.npy", b"x")
    before = sorted(tmp_path.rglob("*"))
    assert len(read_archive(path).train) == 4
    assert sorted(tmp_path.rglob("*")) == before
    promise.case()
