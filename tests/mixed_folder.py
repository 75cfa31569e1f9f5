"""A folder of images such as users have: mixed sizes, formats and kinds of images, in four classes that can be learned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]  # (H, W, 3)

CLASSES = ("checks", "discs", "horizontal", "vertical")
_ROTATED = 0x0112  # the EXIF tag of the orientation
# Each kind of image in one format that can store it.
_KINDS = (
    ("RGB", "png"), ("RGB", "jpg"), ("RGB", "bmp"), ("RGB", "webp"), ("RGB", "gif"), ("RGB", "tif"), ("gray", "jpg"),
    ("alpha", "png"), ("alpha", "webp"), ("16-bit", "png"), ("16-bit", "tif"), ("palette", "png"), ("palette", "gif"),
    ("CMYK", "jpg"), ("CMYK", "tif"), ("rotated", "jpg"),
)  # fmt: skip


def make_mixed_folder(
    folder: Path, *, each: int = 150, corrupt: bool = False, empty: bool = False, text: bool = False, seed: int = 0
) -> Path:
    """Write `each` images for each class; on request, also a truncated, an empty and a text file. Return the folder.

    Sizes are 8 to 2,000 pixels, most of them 32 to 96.
    """
    rng = np.random.default_rng(seed)
    for label, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(each):
            kind, ending = _KINDS[i % len(_KINDS)]
            height, width = _shape(i, rng)
            path = folder / name / f"{i:04}-{kind}.{ending}"
            _save(_pattern(label, height, width, rng), kind, path)
    first = folder / CLASSES[0]
    if corrupt:
        whole = (first / "0001-RGB.jpg").read_bytes()
        (first / "corrupt.jpg").write_bytes(whole[: len(whole) // 2])
    if empty:
        (first / "empty.png").write_bytes(b"")
    if text:
        (first / "text.jpg").write_text("this is not an image\n")
    return folder


def _shape(i: int, rng: np.random.Generator) -> tuple[int, int]:
    """Return height and width: an icon, a panorama and a photograph in each class, otherwise small images."""
    special = {3: (8, 8), 17: (30, 2000), 33: (480, 640), 49: (97, 40), 65: (33, 32)}
    height, width = special.get(i, tuple(int(n) for n in rng.integers(32, 97, 2)))
    return height, width


def _pattern(label: int, height: int, width: int, rng: np.random.Generator) -> Pixels:
    """Return a picture (H, W, 3) of a class: its pattern in random colours, at a random phase, with a little noise."""
    y, x = np.mgrid[:height, :width] / min(height, width)
    phase, count = rng.uniform(0, 1, 2), rng.uniform(2.5, 3.5)
    stripes_y, stripes_x = np.sin(2 * np.pi * (count * y + phase[0])), np.sin(2 * np.pi * (count * x + phase[1]))
    circles = np.sin(2 * np.pi * count * np.hypot(y - y.mean(), x - x.mean()))
    values = (stripes_y * stripes_x, circles, stripes_y, stripes_x)[label]
    dark, light = rng.uniform(0, 100, 3), rng.uniform(150, 255, 3)
    colours = dark + (light - dark) * (values > 0)[..., None] + rng.normal(0, 5, (height, width, 3))
    pixels: Pixels = colours.clip(0, 255).astype(np.uint8)
    return pixels


def _save(pixels: Pixels, kind: str, path: Path) -> None:
    """Save a picture as this kind of image; a viewer shows all of them alike."""
    image = Image.fromarray(pixels)
    if kind == "gray":
        image = image.convert("L")
    elif kind == "alpha":
        image.putalpha(Image.fromarray(np.full(pixels.shape[:2], 200, dtype=np.uint8)))
    elif kind == "16-bit":
        image = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
    elif kind == "palette":
        image = image.quantize(64)
    elif kind == "CMYK":
        image = image.convert("CMYK")
    elif kind == "rotated":
        exif = Image.Exif()
        exif[_ROTATED] = 6  # to be turned clockwise by 90 degrees
        image.transpose(Image.Transpose.ROTATE_90).save(path, exif=exif, quality=95)
        return
    image.save(path)
