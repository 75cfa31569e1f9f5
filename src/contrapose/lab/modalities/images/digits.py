"""The built-in data sets: real handwritten digits on coloured backgrounds. They need no download.

scikit-learn ships 1,797 digits of 8 × 8 pixels. Each image shows one of these digits at a random position, size, angle and
colour on a textured background. An image is a function of (seed, index), so the data sets can have any size. Training and
test images are drawn from different digits.

digits     32 × 32 pixels; a digit can be anywhere, at half to seven eighths of the image's width. Used for studies at the
           smoke scale.
digits16   16 × 16 pixels; all digits are near the centre and of similar size, so that images differ by class rather than by
           position, and a minute of training on a CPU is enough. Each test image shows a different digit, so that test
           images are independent of each other. Used for `contrapose demo`, and the default for `contrapose train`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from contrapose.lab.modalities.images.class_names import CLASS_NAMES
from contrapose.lab.modalities.images.images import Images
from contrapose.lab.modalities.packages import installed_folder
from contrapose.randomness import uniform


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """How the digits in a data set are drawn, and which digits are used only for testing."""

    side: int  # width and height of the images, in pixels
    freedom: float  # 1: any position inside the image, and sizes of 18/32 to 28/32 of its side; 0: centred, one size
    held_out: int  # number of digits, the last of the 1,797, that are used only for testing
    training_images: int  # number of training images, unless a run limits it
    test_images: int  # largest number of test images
    once: bool = False  # whether each held-out digit is in only one test image


DRAWINGS: Mapping[str, Drawing] = {
    "digits": Drawing(side=32, freedom=1.0, held_out=297, training_images=5000, test_images=2000),
    "digits16": Drawing(side=16, freedom=0.15, held_out=797, training_images=2000, test_images=797, once=True),
}


def digits(count: int = 10_000, *, train: bool = True, seed: int = 0, name: str = "digits") -> Images:
    """Return `count` images of the ten digits, drawn as in the data set `name`; the same seed gives the same images."""
    if count < 1:
        raise ValueError(f"count: expected at least one image, got {count}")
    drawing = DRAWINGS[name]
    part = slice(None, -drawing.held_out) if train else slice(-drawing.held_out, None)
    strokes, labels = (tensor[part] for tensor in _scans())
    u = uniform(torch.arange(count), 32, seed, int(train))
    digit_index = (u[:, 0] * len(strokes)).long()
    if drawing.once and not train:
        digit_index = torch.arange(count) % len(strokes)
    # Images are drawn in chunks, to bound the memory for intermediate float images.
    chunks = zip(digit_index.split(2000), u.split(2000), strict=True)
    pixels = torch.cat([_draw(strokes[chunk], chunk_u, drawing) for chunk, chunk_u in chunks])
    return Images(name if train else f"{name} (test)", pixels, labels[digit_index], CLASS_NAMES[name])


@cache
def _scans() -> tuple[Tensor, Tensor]:
    """Return scikit-learn's digits (1797, 8, 8) in [0, 1] and their labels (1797,)."""
    folder = installed_folder("sklearn")
    file = None if folder is None else folder / "datasets" / "data" / "digits.csv.gz"
    if file is not None and file.is_file():  # read directly: importing scikit-learn takes seconds at each start
        import numpy as np

        table = np.loadtxt(file, delimiter=",")
        pixels, labels = table[:, :-1].reshape(-1, 8, 8), table[:, -1]
    else:
        from sklearn.datasets import load_digits

        source = load_digits()
        pixels, labels = source.images, source.target
    return torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels, dtype=torch.long)


def _draw(strokes: Tensor, u: Tensor, drawing: Drawing) -> Tensor:
    """Draw digits on backgrounds: strokes (B, 8, 8) in [0, 1], random numbers (B, 32) -> uint8 (B, 3, side, side)."""
    ink = _transform(strokes, u[:, 1:5], drawing)
    background, colour = _background(u[:, 8:32], drawing.side), u[:, 5:8, None, None]
    # Light ink on dark backgrounds and dark ink on light ones, so that every digit stays legible.
    brightness = background.mean((2, 3), keepdim=True).mean(1, keepdim=True)
    colour = torch.where(brightness < 0.5, 0.55 + 0.45 * colour, 0.45 * colour)
    picture = background * (1 - ink) + colour * ink
    return (picture.clamp(0, 1) * 255).round().to(torch.uint8)


def _transform(strokes: Tensor, u: Tensor, drawing: Drawing) -> Tensor:
    """Rotate each digit by up to 20°, scale it and shift it within the image: (B, 1, side, side)."""
    angle = (u[:, 0] * 2 - 1) * (20 * math.pi / 180)
    zoom = (23 - 5 * drawing.freedom + 10 * drawing.freedom * u[:, 1]) / 32
    max_shift = (1 - zoom) * drawing.freedom
    x, y = (u[:, 2] * 2 - 1) * max_shift, (u[:, 3] * 2 - 1) * max_shift
    # affine_grid maps output to input coordinates, so the matrix is the inverse of the transform.
    cos, sin = torch.cos(angle) / zoom, torch.sin(angle) / zoom
    matrix = torch.stack(
        [torch.stack([cos, sin, -cos * x - sin * y], 1), torch.stack([-sin, cos, sin * x - cos * y], 1)], 1
    )
    grid = affine_grid(matrix, [len(strokes), 1, drawing.side, drawing.side], align_corners=False)
    # Interpolated strokes rarely reach 1; the factor makes them opaque.
    return (grid_sample(strokes[:, None], grid, align_corners=False) * 1.3).clamp(0, 1)


def _background(u: Tensor, side: int) -> Tensor:
    """Return a gradient between two similar colours with two faint sine waves: (B, 24) -> (B, 3, side, side)."""
    axis = torch.linspace(-1, 1, side)
    y, x = axis[:, None], axis[None, :]
    direction = 2 * math.pi * u[:, 0, None, None]
    slope = 0.5 + 0.5 * (torch.cos(direction) * x + torch.sin(direction) * y) / math.sqrt(2)
    first, second = u[:, 1:4, None, None], u[:, 4:7, None, None]
    second = first + 0.6 * (second - first)
    background = first * slope[:, None] + second * (1 - slope[:, None])
    for start in (
        7,
        14,
    ):  # each wave uses six random numbers: direction, phase, frequency and one amplitude per channel
        angle, phase = 2 * math.pi * u[:, start, None, None], 2 * math.pi * u[:, start + 1, None, None]
        frequency = 2 + 8 * u[:, start + 2, None, None]
        wave = torch.sin(frequency * (torch.cos(angle) * x + torch.sin(angle) * y) + phase)
        background = background + 0.08 * wave[:, None] * (u[:, start + 3 : start + 6, None, None] * 2 - 1)
    return background.clamp(0, 1)
