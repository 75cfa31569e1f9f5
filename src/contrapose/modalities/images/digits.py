"""The built-in data set: real handwritten digits on coloured grounds. Nothing to download.

scikit-learn ships 1,797 digits of 8 × 8 pixels. Each image here is one of them, drawn at a random place, size, angle
and colour on a ground of colours and waves, 32 × 32 RGB. Every image is a function of (seed, its number), so the set
has any size. Training and test images come from different digits.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from contrapose.modalities.images.images import Images
from contrapose.randomness import uniform

SIZE = 32
_HELD_OUT = 297  # of the 1,797 digits, the last ones, for testing


def digits(count: int = 10_000, *, train: bool = True, seed: int = 0) -> Images:
    """`count` images of the ten digits, the same for the same seed."""
    from sklearn.datasets import load_digits

    if count < 1:
        raise ValueError(f"count: expected at least one image, got {count}")
    source = load_digits()
    part = slice(None, -_HELD_OUT) if train else slice(-_HELD_OUT, None)
    strokes = torch.tensor(source.images[part] / 16, dtype=torch.float32)
    names = torch.tensor(source.target[part], dtype=torch.long)
    u = uniform(torch.arange(count), 32, seed, int(train))
    which = (u[:, 0] * len(strokes)).long()
    pixels = torch.cat([_draw(strokes[w], v) for w, v in zip(which.split(2000), u.split(2000), strict=True)])
    classes = tuple(str(digit) for digit in range(10))
    return Images("digits" if train else "digits (test)", pixels, names[which], classes)


def _draw(strokes: Tensor, u: Tensor) -> Tensor:
    """Strokes (B, 8, 8) in [0, 1] and 32 random numbers each -> uint8 (B, 3, 32, 32)."""
    ink = _place(strokes, u[:, 1:5])
    ground, colour = _ground(u[:, 8:32]), _ink_colour(u[:, 5:8])
    # Ink lighter or darker than the ground, whatever the ground is.
    brightness = ground.mean((2, 3), keepdim=True).mean(1, keepdim=True)
    colour = torch.where(brightness < 0.5, 0.55 + 0.45 * colour, 0.45 * colour)
    picture = ground * (1 - ink) + colour * ink
    return (picture.clamp(0, 1) * 255).round().to(torch.uint8)


def _place(strokes: Tensor, u: Tensor) -> Tensor:
    """Each digit turned by up to 20°, 18 to 28 pixels high, anywhere it fits."""
    angle = (u[:, 0] * 2 - 1) * (20 * math.pi / 180)
    zoom = (18 + 10 * u[:, 1]) / SIZE
    room = 1 - zoom
    x, y = (u[:, 2] * 2 - 1) * room, (u[:, 3] * 2 - 1) * room
    cos, sin = torch.cos(angle) / zoom, torch.sin(angle) / zoom
    matrix = torch.stack(
        [torch.stack([cos, sin, -cos * x - sin * y], 1), torch.stack([-sin, cos, sin * x - cos * y], 1)], 1
    )
    grid = affine_grid(matrix, [len(strokes), 1, SIZE, SIZE], align_corners=False)
    return (grid_sample(strokes[:, None], grid, align_corners=False) * 1.3).clamp(0, 1)


def _ground(u: Tensor) -> Tensor:
    """A colour, fading a little towards another, and two faint waves."""
    axis = torch.linspace(-1, 1, SIZE)
    y, x = axis[:, None], axis[None, :]
    turn = 2 * math.pi * u[:, 0, None, None]
    slope = 0.5 + 0.5 * (torch.cos(turn) * x + torch.sin(turn) * y) / math.sqrt(2)
    first, second = u[:, 1:4, None, None], u[:, 4:7, None, None]
    second = first + 0.6 * (second - first)
    ground = first * slope[:, None] + second * (1 - slope[:, None])
    for start in (7, 14):
        angle, phase = 2 * math.pi * u[:, start, None, None], 2 * math.pi * u[:, start + 1, None, None]
        rate = 2 + 8 * u[:, start + 2, None, None]
        wave = torch.sin(rate * (torch.cos(angle) * x + torch.sin(angle) * y) + phase)
        ground = ground + 0.08 * wave[:, None] * (u[:, start + 3 : start + 6, None, None] * 2 - 1)
    return ground.clamp(0, 1)


def _ink_colour(u: Tensor) -> Tensor:
    return u[:, :, None, None]
