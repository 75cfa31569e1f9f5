"""Read COCO annotations: one JSON file for all images of a split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from contrapose.lab.evaluation.detection.index import BoxIndex, check_size, clip_box, image_file, is_number
from contrapose.lab.evaluation.detection.masks import mask_problem
from contrapose.lab.modalities.input_files import read_json

Entry = dict[str, Any]


def coco_file(folder: Path, part: str) -> Path | None:
    """Return the path of annotations/instances_PART*.json, such as instances_train2017.json; None if there is no such file."""
    return next(iter(sorted((folder / "annotations").glob(f"instances_{part}*.json"))), None)


def read_coco(path: Path, *, masks: bool = False) -> BoxIndex:
    """Read and check an annotation file. The images for instances_NAME.json are in the folder NAME.

    `masks` says whether each object needs a mask, which is checked too.
    """
    folder = path.parents[1] / path.stem.removeprefix("instances_")
    content = _load(path)
    images, categories = (_by_id(content[name], name, path) for name in ("images", "categories"))
    files = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
    for image in content["images"]:
        check_size(image["width"], image["height"], f"{path}: image {image['id']!r:.80}")
        # Listing the folder once replaces 118,000 checks for a file; file names may include a subfolder.
        name = image["file_name"]
        image["file_name"] = str(folder / name if name in files else image_file(folder, [name], listed_in=path))
    for number, annotation in enumerate(content["annotations"], 1):
        where = f"{path}: annotation {annotation.get('id', number)!r:.80}"
        image = _referred(annotation, "image", images, where)
        _referred(annotation, "category", categories, where)
        if masks:
            _check_mask(annotation, image, where)
        annotation["bbox"] = _box(annotation.get("bbox"), image, where)
        annotation["iscrowd"] = _is_crowd(annotation, where)
        annotation["id"] = number  # pycocotools counts an object with id 0 as missed
    return content


def _load(path: Path) -> BoxIndex:
    """Return the three lists of a file, whose entries have all keys that are needed."""
    content = read_json(path)
    needed: dict[str, dict[str, type]] = {
        "images": {"id": object, "file_name": str, "width": object, "height": object},
        "annotations": {"image_id": object, "category_id": object},
        "categories": {"id": object, "name": str},
    }
    for name, keys in needed.items():
        entries = content.get(name) if isinstance(content, dict) else None
        if not isinstance(entries, list):
            raise ValueError(
                f"data: {path}: expected lists of images, annotations and categories, but it has no {name}"
            )
        for entry in entries:
            if not isinstance(entry, dict):
                raise ValueError(f"data: {path}: expected an object for each of its {name}, got {entry!r:.80}")
            for key, kind in keys.items():
                if key not in entry:
                    raise ValueError(f"data: {path}: one of its {name} has no {key}")
                if not isinstance(entry[key], kind):
                    raise ValueError(f"data: {path}: the {key} of one of its {name} is not a text: {entry[key]!r:.80}")
    return BoxIndex(images=content["images"], annotations=content["annotations"], categories=content["categories"])


def _by_id(entries: list[Entry], name: str, path: Path) -> dict[Any, Entry]:
    """Return the entries of a list by their ids, which are numbers or texts, and different."""
    ids = [entry["id"] for entry in entries]
    if not all(isinstance(key, str) for key in ids):
        others = [key for key in ids if type(key) is not int and not is_number(key)]
        if others:
            raise ValueError(f"data: {path}: expected a number as the id of each of its {name}, got {others[0]!r:.80}")
    by_id = dict(zip(ids, entries, strict=True))
    if len(by_id) < len(ids):
        raise ValueError(f"data: {path}: two of its {name} have the same id")
    return by_id


def _referred(annotation: Entry, to: str, entries: dict[Any, Entry], where: str) -> Entry:
    """Return the image or the category that an annotation refers to."""
    key = annotation[f"{to}_id"]
    if not isinstance(key, int | float | str) or key not in entries:  # a list cannot be a key
        raise ValueError(f"data: {where} is of {to} {key!r:.80}, which the file does not list")
    return entries[key]


def _box(box: Any, image: Entry, where: str) -> list[float]:
    if not isinstance(box, list) or len(box) != 4 or not all(map(is_number, box)):
        raise ValueError(f"data: {where}: expected a bbox of 4 numbers, got {box!r:.80}")
    x, y, width, height = box
    return clip_box((x, y, x + width, y + height), image["width"], image["height"], where)


def _is_crowd(annotation: Entry, where: str) -> int:
    crowd = annotation.get("iscrowd", 0)
    if crowd not in (0, 1):
        raise ValueError(f"data: {where}: expected 0 or 1 for iscrowd, got {crowd!r:.80}")
    return int(crowd)


def _check_mask(annotation: Entry, image: Entry, where: str) -> None:
    mask = annotation.get("segmentation")
    if not mask:
        raise ValueError(f"masks: {where} has no segmentation; omit --masks")
    problem = mask_problem(mask, image["width"], image["height"])
    if problem:
        raise ValueError(f"masks: {where}: its segmentation {problem}; correct it, or omit --masks")
