"""Thumbnails of images."""

from __future__ import annotations

import io
from pathlib import Path

import torch
from PIL import Image

from contrapose.lab.modalities.images.images import Images
from contrapose.lab.modalities.images.previews import previews, thumbnail
from contrapose.lab.modalities.tars import list_tar


def picture(folder: Path, name: str, size: tuple[int, int], colour: str = "red") -> Path:
    path = folder / name
    Image.new("RGB", size, colour).save(path, "JPEG")
    return path


def size_of(jpeg: bytes) -> tuple[int, int]:
    with Image.open(io.BytesIO(jpeg)) as image:
        assert image.format == "JPEG"
        assert not image.getexif()
        return image.size


def test_a_thumbnail_is_small_upright_and_without_metadata(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by a quarter
    exif[0x010F] = "a camera"
    Image.new("RGB", (1600, 800), "blue").save(tmp_path / "large.jpg", exif=exif)
    assert size_of(thumbnail(tmp_path / "large.jpg")) == (120, 240)
    assert size_of(thumbnail(picture(tmp_path, "small.jpg", (30, 20)))) == (30, 20)
    assert size_of(thumbnail(Image.new("RGBA", (480, 480)))) == (240, 240)
    with Image.open(tmp_path / "large.jpg") as unread:
        assert size_of(thumbnail(unread)) == (120, 240)
        assert unread.size == (1600, 800)


def test_a_thumbnail_of_a_member_of_a_tar(tmp_path: Path) -> None:
    import tarfile

    with tarfile.open(tmp_path / "shard.tar", "w") as tar:
        tar.add(picture(tmp_path, "a.jpg", (480, 240)), "a.jpg")
    (member,) = list_tar(tmp_path / "shard.tar").members
    assert size_of(thumbnail(member)) == (240, 120)


def test_small_images_in_memory_are_enlarged() -> None:
    pixels = torch.zeros(2, 3, 16, 16, dtype=torch.uint8)
    assert [size_of(preview.image) for preview in previews(Images("a", pixels, None), side=240)] == [(64, 64)] * 2
    assert size_of(previews(Images("a", pixels, None), side=8)[0].image) == (8, 8)
