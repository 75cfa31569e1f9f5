"""Packed copies: the pixels of the folder, memory-mapped, and refused if the folder has changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors import safe_open

from contrapose.lab.cli import main
from contrapose.lab.modalities import DataSettings
from contrapose.lab.modalities.images.load import load
from contrapose.lab.modalities.images.packed import MappedImages, PackedImages, pack, read_packed
from contrapose.lab.modalities.images.stream import Files
from contrapose.lab.modalities.images.views import Views

VIEWS = Views.named("simclr-cifar", size=16)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with two classes of photographs of different shapes."""
    generator = torch.Generator().manual_seed(0)
    for number in range(12):
        path = tmp_path / "photos" / ("cat", "dog")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        shape = (20 + number, 40 - number, 3)
        Image.fromarray(torch.randint(256, shape, dtype=torch.uint8, generator=generator).numpy()).save(path)
    return tmp_path / "photos"


def packed(folder: Path, views: Views = VIEWS, **settings: object) -> Path:
    out = folder.parent / "photos.safetensors"
    pack(DataSettings(data=str(folder), **settings), views, out)  # type: ignore[arg-type]
    return out


@pytest.mark.parametrize("name", ["simclr-cifar", "simclr"])
def test_pixels_labels_and_fingerprints_are_those_of_the_folder(folder: Path, name: str) -> None:
    views = Views.named(name, size=16 if name == "simclr-cifar" else 96)
    copy, original = read_packed(packed(folder, views)), load(str(folder)).map(lambda source: source.in_memory(views))
    for found, expected in zip((copy.train, copy.test), (original.train, original.test), strict=True):
        assert isinstance(found, PackedImages)
        assert expected is not None
        assert torch.equal(found.in_memory(views).pixels, expected.pixels)  # type: ignore[attr-defined]
        assert torch.equal(found.labels, expected.labels)  # type: ignore[arg-type]
        assert found.classes == ("cat", "dog")
        assert found.fingerprint == expected.fingerprint
        assert found.subset([1, 0]).fingerprint == expected.subset([1, 0]).fingerprint != found.fingerprint


def test_a_folder_without_classes(folder: Path) -> None:
    for path in (folder / "cat").iterdir():
        path.rename(folder.parent / path.name)
    flat = folder.parent / "flat"
    flat.mkdir()
    for path in folder.parent.glob("*.png"):
        path.rename(flat / path.name)
    split = read_packed(packed(flat))
    assert (len(split.train), split.train.labels, split.test) == (6, None, None)


def test_batches_that_are_read_from_the_file_are_those_in_memory(folder: Path) -> None:
    train = read_packed(packed(folder)).train
    assert isinstance(train, PackedImages)
    resident = train.reader(VIEWS, torch.device("cpu"), workers=0, timeout=1.0)
    mapped = MappedImages(train.pixels, VIEWS, torch.device("cpu"))
    batches = [[3, 1], [0, 2]]
    for one, other in zip(
        resident.train(batches, seed=1, epoch=2), mapped.train(batches, seed=1, epoch=2), strict=True
    ):
        assert all(map(torch.equal, one, other))
    assert all(map(torch.equal, resident.plain(), mapped.plain()))


def test_a_gpu_that_is_too_small_reads_batches(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = read_packed(packed(folder)).train
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 1000))
    reader = train.reader(VIEWS, torch.device("cuda"), workers=0, timeout=1.0)
    assert isinstance(reader, MappedImages)
    assert reader.resident is None


def test_a_folder_whose_name_is_not_utf8(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = folder.with_name(os.fsdecode(b"photos \xff"))
    try:
        folder.rename(other)
    except OSError:
        pytest.skip("this file system keeps names in UTF-8")
    out = folder.with_name("packed.safetensors")
    main(["data", "pack", str(other), "--size", "16", "-o", str(out)])
    assert "images in" in capsys.readouterr().out
    train = read_packed(out, as_folder=True).train
    assert isinstance(train, PackedImages)
    assert Path(str(train.paths[0])).read_bytes().startswith(b"\x89PNG")
    (other / "cat" / "100.png").write_bytes((other / "cat" / "0.png").read_bytes())
    with pytest.raises(ValueError, match="have changed since"):
        read_packed(out)


def test_a_changed_folder_is_refused_and_a_missing_one_is_not_needed(folder: Path) -> None:
    out = packed(folder)
    os.utime(folder / "cat" / "0.png", ns=(1, 1))
    with pytest.raises(ValueError, match="have changed since"):
        read_packed(out)
    folder.rename(folder.parent / "elsewhere")
    assert len(read_packed(out).train) == 10


def test_views_that_need_other_squares_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"squares of 16 pixels for views of 16.* use --size 16, or pack .*--size 24"):
        read_packed(packed(folder)).train.in_memory(Views.named("simclr-cifar", size=24))


def test_files_that_are_no_packed_copy(folder: Path, tmp_path: Path) -> None:
    out = packed(folder)
    content = out.read_bytes()
    for damaged in (content[:-1], content[:100], b"", b"x" * 100):
        out.write_bytes(damaged)
        with pytest.raises(ValueError, match="not a packed copy, or it is damaged"):
            read_packed(out)
    from safetensors.torch import save_file

    save_file({"weight": torch.ones(1)}, out)
    with pytest.raises(ValueError, match="not a packed copy of a folder"):
        read_packed(out)


def damaged(content: bytes) -> bytes:
    return content[:-999] + bytes([content[-999] ^ 4]) + content[-998:]


def test_a_changed_copy_is_refused(folder: Path) -> None:
    """Any write changes the modification time; a copy that is intact is read whole once, and marked."""
    out = packed(folder)
    content, times = out.read_bytes(), (out.stat().st_atime_ns, out.stat().st_mtime_ns)
    assert times[1] % 10**9 == 0
    out.write_bytes(content)  # as after a copy from another disk
    assert out.stat().st_mtime_ns != times[1]
    read_packed(out)
    assert out.stat().st_mtime_ns == times[1]
    out.write_bytes(damaged(content))
    with pytest.raises(
        ValueError, match=r"a packed copy, is damaged: its checksum does not match; .*data pack .*photos -o"
    ):
        read_packed(out)
    os.utime(out, ns=times)  # as after damage by the disk, which only reading the whole file would find
    read_packed(out)


def test_data_check_reads_the_whole_copy(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = packed(folder)
    times = out.stat().st_atime_ns, out.stat().st_mtime_ns
    main(["data", "check", str(out)])
    assert f"{out} has the bytes that were written when it was packed" in capsys.readouterr().out
    out.write_bytes(damaged(out.read_bytes()))
    os.utime(out, ns=times)
    with pytest.raises(SystemExit):
        main(["data", "check", str(out)])
    assert "its checksum does not match" in capsys.readouterr().err


def test_a_copy_of_an_earlier_version_is_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors.torch import load, save_file

    out = packed(folder)
    with safe_open(out, "pt") as file:
        metadata = file.metadata()
    tensors = load(out.read_bytes())
    del tensors["checksum"], metadata["written"], metadata["fingerprint"]
    save_file(tensors, out, {**metadata, "format": "contrapose packed images 1"})
    assert len(read_packed(out).train) == 10
    main(["data", "check", str(out)])
    assert "was packed by an earlier version, without a checksum" in capsys.readouterr().out


def test_a_broken_file_leaves_nothing_behind(folder: Path) -> None:
    (folder / "cat" / "broken.png").write_bytes(b"not an image")
    with pytest.raises(ValueError, match=r"broken\.png, cannot be read"):
        packed(folder)
    assert [path.name for path in folder.parent.iterdir()] == ["photos"]
    split = read_packed(packed(folder, skip_broken=True))
    assert isinstance(split.train, PackedImages)
    assert "broken.png" not in [path.name for path in split.train.names]


@pytest.mark.thorough
def test_a_run_on_a_packed_copy_has_the_same_weights(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder.parent)
    main(["data", "pack", "photos", "-o", "photos.safetensors", "--size", "16", "--views", "simclr-cifar"])
    assert "train with: contrapose train --data photos.safetensors" in capsys.readouterr().out
    options = [
        "--views",
        "simclr-cifar",
        "--size",
        "16",
        "--encoder",
        "tiny",
        "--epochs",
        "1",
        "--batch",
        "4",
        "--knn",
        "2",
    ]
    for data, out in (("photos", "a"), ("photos.safetensors", "b")):
        main(["train", "--data", data, "--out", out, *options])
    first, second = (next(Path(out).glob("checkpoints/*/tensors.safetensors")).read_bytes() for out in "ab")
    assert first == second
    for arguments in (["photos", "-o", "photos.bin"], ["photos.safetensors", "-o", "x.safetensors"]):
        with pytest.raises(SystemExit):
            main(["data", "pack", *arguments])
    assert not Path("x.safetensors").exists()


def test_settings_are_chosen_for_the_size_of_the_copy(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = packed(folder)
    main(["train", "--data", str(out), "--epochs", "1", "--knn", "2", "--dry-run"])
    assert "size 16" in capsys.readouterr().out
    assert isinstance(load(str(folder)).train, Files)
