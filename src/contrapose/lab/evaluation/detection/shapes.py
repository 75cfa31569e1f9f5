"""Draw a data set of shapes in the layout of VOC or COCO, for trials without the real data sets."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from contrapose.validate import check_choice

if TYPE_CHECKING:
    import numpy as np

SHAPE_CLASSES = ("rectangle", "ellipse")
Shape = tuple[int, tuple[int, int, int, int]]  # class, and x₁, y₁, x₂, y₂


def draw_shapes(
    folder: str | Path, *, layout: str = "voc", train: int = 32, test: int = 16, size: int = 96, seed: int = 0
) -> Path:
    """Write images of one to three rectangles and ellipses on noisy backgrounds, with annotations; return the folder.

    folder        directory to write to
    layout        voc or coco; both have the same images and boxes, and COCO has masks too
    train, test   numbers of images
    size          width and height of an image in pixels
    seed          random seed of the drawings
    """
    import numpy as np

    check_choice("layout", layout, "voc", "coco")
    folder = Path(folder)
    for part, count in enumerate((train, test)):
        images = folder / ("VOC2007/JPEGImages" if layout == "voc" else ("train2017", "val2017")[part])
        images.mkdir(parents=True, exist_ok=True)
        names, shapes = [], []
        for number in range(count):
            names.append(f"{part}{number:05d}")
            shapes.append(_draw_image(images / f"{names[-1]}.jpg", size, np.random.default_rng((seed, part, number))))
        write = _write_voc if layout == "voc" else _write_coco
        write(folder, ("train", "test")[part], names, shapes, size)
    return folder


def _draw_image(path: Path, size: int, random: np.random.Generator) -> list[Shape]:
    """Write one image; return its shapes."""
    import numpy as np
    from PIL import Image, ImageDraw

    background = random.integers(60, 196, 3) + random.integers(-30, 30, (size, size, 3))
    image = Image.fromarray(background.clip(0, 255).astype(np.uint8))
    shapes: list[Shape] = []
    for _ in range(random.integers(1, 4)):
        label = int(random.integers(0, 2))
        width, height = (int(side) for side in random.integers(size // 5, size // 2, 2))
        x, y = int(random.integers(0, size - width)), int(random.integers(0, size - height))
        box = (x, y, x + width, y + height)
        # If a shape hid another shape, the hidden shape's box would have no visible object.
        if any(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for _, b in shapes):
            continue
        colour = tuple(int(value) for value in random.choice((0, 255), 3))
        draw = ImageDraw.Draw(image)
        (draw.ellipse if label else draw.rectangle)((x, y, x + width - 1, y + height - 1), fill=colour)
        shapes.append((label, box))
    image.save(path, quality=95)
    return shapes


def _write_voc(folder: Path, part: str, names: list[str], shapes: list[list[Shape]], size: int) -> None:
    (folder / "classes.txt").write_text("\n".join(SHAPE_CLASSES) + "\n")
    lists, annotations = folder / "VOC2007" / "ImageSets" / "Main", folder / "VOC2007" / "Annotations"
    lists.mkdir(parents=True, exist_ok=True)
    annotations.mkdir(exist_ok=True)
    (lists / ("trainval.txt" if part == "train" else "test.txt")).write_text("\n".join(names) + "\n")
    for name, of_image in zip(names, shapes, strict=True):
        root = ElementTree.Element("annotation")
        _add_numbers(root, "size", {"width": size, "height": size, "depth": 3})
        for label, (x1, y1, x2, y2) in of_image:
            item = ElementTree.SubElement(root, "object")
            ElementTree.SubElement(item, "name").text = SHAPE_CLASSES[label]
            ElementTree.SubElement(item, "difficult").text = "0"
            # VOC counts pixels from 1, and a box includes its last pixel.
            _add_numbers(item, "bndbox", {"xmin": x1 + 1, "ymin": y1 + 1, "xmax": x2, "ymax": y2})
        ElementTree.ElementTree(root).write(annotations / f"{name}.xml")


def _add_numbers(parent: ElementTree.Element, name: str, numbers: dict[str, int]) -> None:
    element = ElementTree.SubElement(parent, name)
    for key, value in numbers.items():
        ElementTree.SubElement(element, key).text = str(value)


def _write_coco(folder: Path, part: str, names: list[str], shapes: list[list[Shape]], size: int) -> None:
    annotations: list[dict[str, Any]] = []
    for image_id, of_image in enumerate(shapes, 1):
        for label, (x1, y1, x2, y2) in of_image:
            outline = _outline(label, (x1, y1, x2, y2))
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image_id,
                    "category_id": label + 1,
                    "bbox": [x1, y1, x2 - x1, y2 - y1],
                    "area": (x2 - x1) * (y2 - y1) * (math.pi / 4 if label else 1),
                    "iscrowd": 0,
                    "segmentation": [outline],
                }
            )
    content = {
        "images": [
            {"id": number, "file_name": f"{name}.jpg", "width": size, "height": size}
            for number, name in enumerate(names, 1)
        ],
        "annotations": annotations,
        "categories": [{"id": number, "name": name} for number, name in enumerate(SHAPE_CLASSES, 1)],
    }
    path = folder / "annotations" / f"instances_{'train' if part == 'train' else 'val'}2017.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


def _outline(label: int, box: tuple[int, int, int, int]) -> list[float]:
    """Return the polygon x₁, y₁, x₂, y₂, … of a shape."""
    x1, y1, x2, y2 = box
    if not label:
        return [x1, y1, x2, y1, x2, y2, x1, y2]
    angles = [2 * math.pi * step / 32 for step in range(32)]
    centre_x, centre_y, radius_x, radius_y = (x1 + x2) / 2, (y1 + y2) / 2, (x2 - x1) / 2, (y2 - y1) / 2
    return [c for a in angles for c in (centre_x + radius_x * math.cos(a), centre_y + radius_y * math.sin(a))]
