"""Headers of JPEG files: what a plain decoder may decode looks as Pillow shows it, and everything else is left to Pillow."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg

from contrapose.lab.modalities.images.decoding import decode, quiet_decoders
from contrapose.lab.modalities.images.jpeg import read_header, upright


def picture(mode: str = "RGB", height: int = 24, width: int = 40) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def saved(image: Image.Image, form: str = "JPEG", **options: Any) -> bytes:
    file = BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def with_orientation(orientation: int, **options: Any) -> bytes:
    exif = Image.Exif()
    exif[0x0110] = "a camera"  # an entry before the orientation
    exif[0x0112] = orientation
    return saved(picture(), exif=exif, **options)


def plainly_decoded(content: bytes) -> Tensor:
    """Decode with torchvision, whose decoder on a GPU does not read EXIF either."""
    header = read_header(content)
    assert header is not None
    with quiet_decoders():
        raw = decode_jpeg(torch.frombuffer(bytearray(content), dtype=torch.uint8), ImageReadMode.RGB)
    assert raw.shape[1:] == header[:2]
    return upright(raw, header.orientation)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientations_are_pillows(orientation: int) -> None:
    content = with_orientation(orientation)
    assert torch.equal(plainly_decoded(content), decode(BytesIO(content)))


@pytest.mark.parametrize(
    "options",
    [{"progressive": True}, {"subsampling": 2}, {"quality": 95, "subsampling": 0}, {"restart_marker_rows": 1}],
)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_common_kinds_are_decoded_plainly(mode: str, options: dict[str, Any]) -> None:
    content = saved(picture(mode), **options)
    assert torch.equal(plainly_decoded(content), decode(BytesIO(content)))


def test_zeros_after_the_end_are_allowed() -> None:
    assert read_header(saved(picture()) + bytes(20)) is not None


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\xff\xd8", b"\xff\xd8\xff\xd9", saved(picture(), "PNG"), saved(picture("CMYK")),
        saved(picture())[:-200], saved(picture()) + b"more", with_orientation(9),
        saved(picture(), xmp=b"<tiff:Orientation>6</tiff:Orientation>"),
    ],
    ids=["empty", "start", "no image", "PNG", "CMYK", "cut off", "text after it", "orientation 9", "XMP orientation"],
)  # fmt: skip
def test_other_files_are_left_to_pillow(content: bytes) -> None:
    assert read_header(content) is None


def test_an_rgb_jpeg_is_left_to_pillow() -> None:
    """Adobe's programs can store RGB; a decoder that expects YCbCr would show wrong colours."""
    content = saved(picture("RGB"), keep_rgb=True)
    assert read_header(content) is None


@given(st.data())
def test_damaged_headers_never_fail(data: st.DataObject) -> None:
    content = bytearray(with_orientation(6))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(2, 200))] = data.draw(st.integers(0, 255))
    header = read_header(bytes(content))
    assert header is None or 1 <= header.orientation <= 8


def test_a_header_that_pillow_reads_has_its_size() -> None:
    content = with_orientation(6)
    header = read_header(content)
    with Image.open(BytesIO(content)) as image:
        assert header is not None
        assert (header.height, header.width) == (image.height, image.width)
        assert ImageOps.exif_transpose(image).size == (header.height, header.width)
