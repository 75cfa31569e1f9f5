"""Read COCO annotations: one JSON file for all images of a split."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from contrapose.lab.evaluation.detection.index import BoxIndex, clip_box


def coco_file(folder: Path, part: str) -> Path | None:
    """Return the path of annotations/instances_PART*.json, such as instances_train2017.json; None if there is no such file."""
    return next(iter(sorted((folder / "annotations").glob(f"instances_{part}*.json"))), None)


def read_coco(path: Path) -> BoxIndex:
    """Read and check an annotation file. The images for instances_NAME.json are in the folder NAME."""
    folder = path.parents[1] / path.stem.removeprefix("instances_")
    content = _load(path)
    images = {image["id"]: image for image in content["images"]}
    if len(images) < len(content["images"]):
        raise ValueError(f"data: {path}: two of its images have the same id")
    categories = {category["id"] for category in content["categories"]}
    files = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
    for image in content["images"]:
        file = folder / image["file_name"]
        # Listing the folder once replaces 118,000 checks for a file; file names may include a subfolder.
        if image["file_name"] not in files and not file.is_file():
            raise ValueError(f"data: {file} does not exist, but {path} lists it")
        image["file_name"] = str(file)
    for number, annotation in enumerate(content["annotations"], 1):
        where = f"{path}: annotation {annotation.get('id')}"
        if annotation["image_id"] not in images:
            raise ValueError(f"data: {where} is of image {annotation['image_id']}, which the file does not list")
        if annotation["category_id"] not in categories:
            raise ValueError(f"data: {where} is of category {annotation['category_id']}, which the file does not list")
        if len(annotation.get("bbox") or ()) != 4:
            raise ValueError(f"data: {where}: expected a bbox of 4 numbers, got {annotation.get('bbox')}")
        image = images[annotation["image_id"]]
        x, y, width, height = annotation["bbox"]
        annotation["bbox"] = clip_box((x, y, x + width, y + height), image["width"], image["height"], where)
        annotation.setdefault("area", width * height)
        annotation.setdefault("iscrowd", 0)
        annotation["id"] = number  # pycocotools counts an object with id 0 as missed
    return content


def _load(path: Path) -> BoxIndex:
    try:
        content: Any = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"data: {path} is not JSON: {error}") from None
    needed = {
        "images": ("id", "file_name", "width", "height"),
        "annotations": ("image_id", "category_id"),
        "categories": ("id", "name"),
    }
    for name, keys in needed.items():
        entries = content.get(name) if isinstance(content, dict) else None
        if not isinstance(entries, list):
            raise ValueError(
                f"data: {path}: expected lists of images, annotations and categories, but it has no {name}"
            )
        lacking = next((key for entry in entries for key in keys if key not in entry), None)
        if lacking is not None:
            raise ValueError(f"data: {path}: one of its {name} has no {lacking}")
    return BoxIndex(images=content["images"], annotations=content["annotations"], categories=content["categories"])
