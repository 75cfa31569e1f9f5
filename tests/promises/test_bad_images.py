"""Broken images are named with the reason, at any place of a cut; unusual ones that a viewer shows are read."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Promise
from PIL import Image

from contrapose.lab.modalities.images.decoding import Problem, attempt, decode, decode_square, quiet_decoders


def noise(width: int, height: int, mode: str = "RGB") -> Image.Image:
    rng = np.random.default_rng(width * 10_000 + height)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).convert(mode)


def bomb(path: Path, side: int = 30_000) -> None:
    """Write a PNG header that declares so many pixels on each side, and no more than 8 × 8 of them."""
    Image.new("1", (8, 8)).save(path)
    content = bytearray(path.read_bytes())
    content[16:24] = side.to_bytes(4, "big") * 2
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    path.write_bytes(content)


def test_broken_files(tmp_path: Path, promise: Promise) -> None:
    noise(64, 64).save(tmp_path / "cut.jpg")
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "cut.jpg").read_bytes()[:900])
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.jpg").write_text("not an image")
    bomb(tmp_path / "bomb.png")
    noise(40_000, 1).save(tmp_path / "line.png")
    reasons = {"cut.jpg": "truncated", "empty.png": "the file is empty", "text.jpg": "its content is none of",
               "bomb.png": "more than 178 megapixels", "line.png": "40000 × 1 pixels are too elongated"}  # fmt: skip
    for name, why in reasons.items():
        problem = attempt(lambda path: decode_square(path, size=224, resized=256), tmp_path / name)
        assert isinstance(problem, Problem)
        assert why in problem.why
        assert "\n" not in problem.why
        promise.case()


@pytest.mark.parametrize("side", [10_001, 13_000])
def test_a_large_image_is_refused_before_it_is_decoded(side: int, tmp_path: Path, promise: Promise) -> None:
    """The header is enough: decoding this file would end with another reason, that it is truncated."""
    bomb(tmp_path / "x.png", side)
    with quiet_decoders():
        problem = attempt(decode, tmp_path / "x.png")
        raised = attempt(lambda path: decode(path, max_megapixels=178), tmp_path / "x.png")
    assert isinstance(problem, Problem)
    assert problem.why == f"{side} × {side} pixels are more than 100 megapixels (the setting max_megapixels)"
    assert isinstance(raised, Problem)
    assert "truncated" in raised.why
    promise.case()


@pytest.mark.parametrize("cuts", [20, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("ending", ["png", "jpg", "bmp", "gif", "tif", "webp"])
def test_a_cut_file_is_named(ending: str, cuts: int, tmp_path: Path, promise: Promise) -> None:
    path = tmp_path / f"x.{ending}"
    noise(40, 30).save(path)
    whole = path.read_bytes()
    for length in np.random.default_rng(0).integers(0, len(whole) - 16, cuts):  # the last bytes may be padding
        path.write_bytes(whole[:length])
        with quiet_decoders():
            problem = attempt(decode, path)
        assert isinstance(problem, Problem), length
        assert problem.why
        assert "\n" not in problem.why
        promise.case()


UNUSUAL: dict[str, tuple[str, str, dict[str, Any]]] = {
    "palette": ("P", "png", {}),
    "transparent palette": ("P", "gif", {"transparency": 0}),
    "one bit": ("1", "png", {}),
    "gray": ("L", "jpg", {}),
    "gray with alpha": ("LA", "png", {}),
    "alpha": ("RGBA", "webp", {}),
    "CMYK": ("CMYK", "jpg", {}),
    "CMYK without loss": ("CMYK", "tif", {}),
    "16 bits": ("I;16", "png", {}),
    "progressive": ("RGB", "jpg", {"progressive": True}),
    "interlaced": ("RGB", "png", {"interlace": 1}),
    "LZW": ("RGB", "tif", {"compression": "tiff_lzw"}),
}


@pytest.mark.parametrize("kind", UNUSUAL)
def test_unusual_images_are_read(kind: str, tmp_path: Path, promise: Promise) -> None:
    """False alarms would leave images out; their pixels are compared in tests/lab/modalities/images/test_decoding.py."""
    mode, ending, options = UNUSUAL[kind]
    image = Image.fromarray(np.arange(1200, dtype=np.uint16).reshape(30, 40)) if mode == "I;16" else noise(40, 30, mode)
    image.save(tmp_path / f"x.{ending}", **options)
    pixels = attempt(decode, tmp_path / f"x.{ending}")
    assert not isinstance(pixels, Problem)
    assert tuple(pixels.shape) == (3, 30, 40)
    promise.case()
