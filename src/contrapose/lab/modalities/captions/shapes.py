"""The built-in set of images with captions, `shapes`: coloured shapes on coloured backgrounds, without a download.

A caption names the shape and both colours, which random crops and flips do not change: "a red circle on a blue background".
Images are drawn when they are read, and are always the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import torch

from contrapose.lab.modalities.captions.read_report import ReadReport
from contrapose.lab.modalities.images.stream import Files
from contrapose.randomness import uniform

NAME = "shapes"
SHAPES = ("circle", "square", "triangle", "star", "cross")
COLOURS = {
    "red": (215, 40, 40), "green": (40, 160, 70), "blue": (50, 80, 215), "yellow": (235, 215, 60),
    "purple": (120, 50, 160), "pink": (250, 150, 190), "black": (25, 25, 25), "white": (240, 240, 240),
}  # fmt: skip
SIDE = 48  # pixels
_TRAIN, _TEST = 2000, 300  # images
_CORNERS = {"square": 4, "triangle": 3, "star": 10}


def is_shapes(path: Path) -> bool:
    """Return whether a path is the name of the built-in set; a file or folder with this name takes precedence."""
    return path == Path(NAME) and not path.exists()


@dataclass(frozen=True, slots=True)
class Drawing:
    """An image of one shape, described by its random properties; it has the interface of `ShardMember`."""

    number: int
    shape: str
    colour: str
    background: str
    brightness: tuple[float, float]  # factors for the two colours
    centre: tuple[float, float]  # pixels
    radius: float
    angle: float

    @property
    def name(self) -> str:
        """A file name for messages."""
        return f"{self.number:04d}.png"

    @property
    def parent(self) -> Path:
        """The name of the data set, by analogy with `Path.parent`."""
        return Path(NAME)

    @property
    def captions(self) -> tuple[str, str]:
        """A sentence and a short form; each names everything that distinguishes the image from others."""
        thing = f"{self.colour} {self.shape}"
        return f"a {thing} on a {self.background} background", f"{thing} on {self.background}"

    def read(self) -> bytes:
        """Draw the image; return it as a PNG file."""
        from PIL import Image, ImageDraw

        bright, dark = self.brightness
        image = Image.new("RGB", (SIDE, SIDE), _shade(self.background, dark))
        draw, fill, (x, y) = ImageDraw.Draw(image), _shade(self.colour, bright), self.centre
        if self.shape == "circle":
            draw.ellipse((x - self.radius, y - self.radius, x + self.radius, y + self.radius), fill=fill)
        else:
            draw.polygon(self._outline(), fill=fill)
        file = BytesIO()
        image.save(file, "PNG")
        return file.getvalue()

    def _outline(self) -> list[tuple[float, float]]:
        """Return the corners of a shape other than the circle."""
        if self.shape == "cross":  # in order of angle: two outer corners per arm, and an inner corner
            arm = math.atan(1 / 3)
            corners = [
                (i * math.pi / 2 + turn, r)
                for i in range(4)
                for turn, r in ((-arm, 1.0), (arm, 1.0), (math.pi / 4, 0.45))
            ]
        else:
            count = _CORNERS[self.shape]
            inner = 0.45 if self.shape == "star" else 1.0
            corners = [(2 * math.pi * i / count, inner if i % 2 else 1.0) for i in range(count)]
        (x, y), r = self.centre, self.radius
        return [
            (x + r * scale * math.cos(self.angle + turn), y + r * scale * math.sin(self.angle + turn))
            for turn, scale in corners
        ]

    def __str__(self) -> str:
        return f"{NAME}/{self.name}"


def _shade(colour: str, factor: float) -> tuple[int, int, int]:
    red, green, blue = (min(255, round(factor * value)) for value in COLOURS[colour])
    return red, green, blue


def drawings() -> list[Drawing]:
    """Return all images: first the training images, then the test images."""
    return [_drawing(number, draw) for number, draw in enumerate(uniform(torch.arange(_TRAIN + _TEST), 9, 0).tolist())]


def _drawing(number: int, draw: list[float]) -> Drawing:
    """Return the image that nine random numbers in [0, 1) determine."""
    colours = list(COLOURS)
    colour = colours.pop(int(draw[0] * len(colours)))
    return Drawing(
        number=number,
        shape=SHAPES[int(draw[1] * len(SHAPES))],
        colour=colour,
        background=colours[int(draw[2] * len(colours))],
        brightness=(0.85 + 0.15 * draw[3], 0.85 + 0.15 * draw[4]),
        centre=(SIDE * (0.4 + 0.2 * draw[5]), SIDE * (0.4 + 0.2 * draw[6])),
        radius=SIDE * (0.22 + 0.14 * draw[7]),
        angle=2 * math.pi * draw[8],
    )


def read_shapes() -> ReadReport:
    """List the images with their captions and splits."""
    reading = ReadReport(source=NAME, advice="")
    for drawing in drawings():
        reading.add(drawing, drawing.name, drawing.captions, str(drawing))
        reading.assign(drawing, "train" if drawing.number < _TRAIN else "test")
    return reading


def labelled_shapes() -> Files:
    """Return the test images with the names of their shapes as classes."""
    test = tuple(drawings()[_TRAIN:])
    labels = torch.tensor([SHAPES.index(drawing.shape) for drawing in test])
    return Files(NAME, test, labels, SHAPES)
