"""Read Pascal VOC annotations: one XML file per image."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from contrapose.lab.evaluation.detection.index import BoxIndex, check_size, clip_box, image_file, is_number
from contrapose.lab.modalities.input_files import path_inside, read_bytes, read_text
from contrapose.lab.modalities.progress import progress_bar
from contrapose.validate import nearest

VOC_CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog", "horse",
    "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
_ENDINGS = (".jpg", ".jpeg", ".png")


def voc_folders(folder: Path) -> list[Path]:
    """Return a VOCdevkit's folders that contain Annotations/, one per year, or the folder itself; empty if there are none."""
    candidates = [folder, *sorted(folder.glob("VOC*")), *sorted(folder.glob("VOCdevkit/VOC*"))]
    return [path for path in candidates if (path / "Annotations").is_dir() and (path / "ImageSets" / "Main").is_dir()]


def voc_classes(folder: Path) -> tuple[str, ...]:
    """Return the class names in classes.txt, one per line; without that file, the 20 classes of VOC."""
    path = folder / "classes.txt"
    return tuple(read_text(path).split()) if os.path.lexists(path) else VOC_CLASSES


def read_voc(folders: Sequence[Path], image_set: str, classes: Sequence[str], *, difficult: bool) -> BoxIndex:
    """Return the images that ImageSets/Main lists under this name, in all folders that have such a list.

    `difficult` says whether objects that the annotators marked as difficult count; otherwise the score ignores them, like
    crowds in COCO.
    """
    lists = [
        (folder, path)
        for folder in folders
        if os.path.lexists(path := folder / "ImageSets" / "Main" / f"{image_set}.txt")
    ]
    if not lists:
        raise ValueError(f"data: {folders[0] / 'ImageSets' / 'Main' / image_set}.txt does not exist")
    names = [
        (folder, line.split()[0]) for folder, path in lists for line in read_text(path).splitlines() if line.strip()
    ]
    index = BoxIndex(
        images=[],
        annotations=[],
        categories=[{"id": number, "name": name} for number, name in enumerate(classes, 1)],
    )
    with progress_bar(f"reading the annotations of {image_set}", len(names)) as advance:
        for folder, name in names:
            _add_image(index, folder, name, classes, difficult=difficult)
            advance()
    return index


def _add_image(index: BoxIndex, folder: Path, name: str, classes: Sequence[str], *, difficult: bool) -> None:
    path, image_id = path_inside(folder / "Annotations", f"{name}.xml"), len(index["images"]) + 1
    if path is None:
        raise ValueError(f"data: ImageSets/Main in {folder} lists {name!r:.200}, which is outside of Annotations/")
    root = _parse(path)
    width, height = (int(_number(root, f"size/{side}", path)) for side in ("width", "height"))
    check_size(width, height, str(path))
    picture = image_file(folder / "JPEGImages", [f"{name}{ending}" for ending in _ENDINGS], listed_in=path)
    index["images"].append({"id": image_id, "file_name": str(picture), "width": width, "height": height})
    for item in root.findall("object"):
        label = (item.findtext("name") or "").strip()
        if label not in classes:
            raise ValueError(
                f"data: {path}: class {label!r} is unknown{nearest(label, classes)} (classes other than VOC's are listed in "
                "a file classes.txt beside Annotations or VOC2007)"
            )
        # VOC counts pixels from 1, and a box includes its last pixel.
        x1, y1, x2, y2 = (_number(item, f"bndbox/{key}", path) for key in ("xmin", "ymin", "xmax", "ymax"))
        box = clip_box((x1 - 1, y1 - 1, x2, y2), width, height, str(path))
        ignored = not difficult and (item.findtext("difficult") or "0").strip() == "1"
        index["annotations"].append(
            _annotation(len(index["annotations"]) + 1, image_id, 1 + classes.index(label), box, ignored)
        )


def _annotation(number: int, image_id: int, category: int, box: list[float], ignored: bool) -> dict[str, Any]:
    return {
        "id": number,
        "image_id": image_id,
        "category_id": category,
        "bbox": box,
        "area": box[2] * box[3],
        "iscrowd": int(ignored),
    }


def _parse(path: Path) -> ElementTree.Element:
    if not os.path.lexists(path):
        raise ValueError(f"data: {path} does not exist, but its image is listed in ImageSets/Main")
    content = read_bytes(path)
    try:
        return ElementTree.fromstring(content)
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # the latter of an unknown encoding
        raise ValueError(f"data: {path} is not XML: {error}") from None


def _number(element: ElementTree.Element, key: str, path: Path) -> float:
    text = element.findtext(key)
    try:
        number = float(text or "")  # some files in VOC2012 have fractions of pixels
    except ValueError:
        number = float("nan")
    if not is_number(number):
        raise ValueError(f"data: {path}: expected a number in <{key.replace('/', '><')}>, got {text!r:.80}")
    return number
