"""Images in WebDataset's tars: listed with their classes, indexed on disk, read in place and nearly in sequence."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
import torch
from streaming import write_folder

from contrapose.lab.cli import main
from contrapose.lab.modalities import recognise
from contrapose.lab.modalities.images.file_list import MemberList
from contrapose.lab.modalities.images.image_shards import write_shards
from contrapose.lab.modalities.images.load import load
from contrapose.lab.modalities.images.stream import Files
from contrapose.lab.modalities.stored_files import ShardMember


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONTRAPOSE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "shards"


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Return tars of 20 cats and 20 dogs, for training and for test, 15 images in each."""
    assert write_shards(write_folder(tmp_path / "mine"), tmp_path / "shards", images_per_file=15) == 6
    return tmp_path / "shards"


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def png(folder: Path) -> bytes:
    return next(folder.parent.rglob("*.png")).read_bytes()


def test_tars_have_the_images_and_classes_of_their_folder(shards: Path, tmp_path: Path) -> None:
    assert sorted(path.name for path in shards.glob("*.tar")) == [
        f"{part}-{number:06d}.tar" for part in ("test", "train") for number in range(3)
    ]
    folder, copy = load(str(tmp_path / "mine")), load(str(shards))
    assert recognise(str(shards)) == "images"
    for original, found in ((folder.train, copy.train), (folder.test, copy.test)):
        assert isinstance(original, Files)
        assert isinstance(found, Files)
        assert found.classes == ("cat", "dog")
        assert found.labels is not None
        assert original.labels is not None
        contents = [path.read_bytes() for path in original.paths if isinstance(path, Path)]
        pairs = set(zip(contents, original.labels.tolist(), strict=True))
        members = [path.read() for path in found.paths if isinstance(path, ShardMember)]
        assert (set(zip(members, found.labels.tolist(), strict=True)), len(members)) == (pairs, 40)
    assert copy.train.labels is not None
    first = copy.train.labels[:15]
    assert 0 < first.sum() < 15  # a tar has images of all classes


def test_an_index_on_disk_is_used_until_a_tar_changes(
    shards: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = load(str(shards))
    before = listed.train
    assert listed.notes == ()
    (index,) = cache.iterdir()
    assert index.name.startswith("shards-")
    with monkeypatch.context() as patched:
        patched.setattr("contrapose.lab.modalities.images.image_shards.list_tar", None)  # no tar is listed
        again = load(str(shards)).train
    assert list(again.paths) == list(before.paths)
    assert again.fingerprint == before.fingerprint
    assert torch.equal(again.labels, before.labels)  # type: ignore[arg-type]
    write_tar(shards / "train-000000.tar", {"1.png": png(shards), "1.cls": b"1"})
    changed = load(str(shards))
    assert len(changed.train) == 26
    assert changed.notes == (f"cache: {index} was computed from other data or settings; it is computed again",)
    content = index.read_bytes()
    for damaged in (b"damaged", content[:-1], content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]):
        index.write_bytes(damaged)
        split = load(str(shards))
        assert list(split.train.paths) == list(changed.train.paths)
        assert split.notes[0].startswith(f"cache: {index} ")
        assert load(str(shards)).notes == ()
    assert sorted(path.suffix for path in shards.iterdir()) == [".tar"] * 6 + [".txt"]


def test_a_cache_that_cannot_be_written_to(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index is written below /proc, where even root cannot write."""
    monkeypatch.setenv("CONTRAPOSE_CACHE", "/proc/contrapose")
    for _ in range(2):
        split = load(str(shards))
        assert len(split.train) == 40
        (note,) = split.notes
        assert note.startswith("cache: /proc/contrapose/shards/shards-")
        assert note.endswith("and is not kept; set CONTRAPOSE_CACHE to use another folder")


def test_the_index_of_an_earlier_version_is_ignored(shards: Path) -> None:
    (shards / "contrapose-index.safetensors").write_bytes(b"anything")
    assert recognise(str(shards)) == "images"
    assert len(load(str(shards)).train) == 40


def test_patterns_and_single_tars(shards: Path) -> None:
    assert len(load(str(shards / "train-{000000..000001}.tar"), hold_out=0).train) == 30
    assert len(load(str(shards / "train-000002.tar"), hold_out=0).train) == 10
    split = load(str(shards / "train-000000.tar"))
    assert split.test is not None
    assert len(split.train) + len(split.test) == 15


def test_images_without_classes(tmp_path: Path) -> None:
    write_folder(tmp_path / "mine")
    (tmp_path / "tars").mkdir()
    write_tar(tmp_path / "tars" / "a.tar", {f"{i}.png": png(tmp_path / "mine") for i in range(4)})
    split = load(str(tmp_path / "tars"))
    assert (len(split.train), split.train.labels, split.test) == (4, None, None)


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ({"1.png": b"x", "1.cls": b"cat"}, "is not a class: expected a whole number from 0 on, got 'cat'"),
        ({"1.png": b"x", "1.cls": b"-1"}, "is not a class"),
        ({"1.png": b"x", "1.cls": b"0", "2.png": b"x"}, r"2\.png has no class, and others have one"),
        ({"1.png": b"x", "1.jpg": b"x", "1.cls": b"0"}, r"has 1\.png and 1\.jpg, expected one image for each key"),
        ({"1.cls": b"0"}, "no images in the tars"),
    ],
)
def test_tars_that_cannot_be_used(members: dict[str, bytes], problem: str, tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", members)
    with pytest.raises(ValueError, match=problem):
        load(str(tmp_path))


def test_a_tar_that_ends_early_is_named(shards: Path) -> None:
    tar = shards / "train-000001.tar"
    tar.write_bytes(tar.read_bytes()[:30000])
    with pytest.raises(
        ValueError, match=r"train-000001\.tar is cut off or damaged after .*; copy or download it again"
    ):
        load(str(shards))


def test_a_list_of_members_takes_little_memory(shards: Path) -> None:
    paths = load(str(shards)).train.paths
    assert isinstance(paths, MemberList)
    assert isinstance(paths[-1], ShardMember)
    assert [member.name for member in paths[1:3]] == [paths[1].name, paths[2].name]
    assert paths.shard_numbers.tolist() == [number for number in (3, 4, 5) for _ in range(15)][:40]


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    write_folder(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    main(["data", "convert", "mine", "-o", "tars", "--images-per-file", "25"])
    output = capsys.readouterr().out
    assert output == "4 tars in tars\ntrain with: contrapose train --data tars --stream\n"
    main(["data", "check", "tars"])
    assert "train: 40 images, 2 classes: cat 20, dog 20" in capsys.readouterr().out
    for arguments, message in (
        (["mine", "-o", "tars"], "--out: tars is not empty"),
        (["missing", "-o", "new"], "path: expected a folder of images, but missing is not a folder"),
        (["mine", "-o", "new", "--images-per-file", "0"], "--images-per-file"),
    ):
        with pytest.raises(SystemExit):
            main(["data", "convert", *arguments])
        assert message in capsys.readouterr().err
