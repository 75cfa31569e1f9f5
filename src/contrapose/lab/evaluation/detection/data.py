"""VOC and COCO folders as images with boxes, in the form that torchvision's detectors take."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from contrapose.extras import needs_extra
from contrapose.lab.evaluation.detection.coco import coco_file, read_coco
from contrapose.lab.evaluation.detection.index import BoxIndex
from contrapose.lab.evaluation.detection.voc import read_voc, voc_classes, voc_folders
from contrapose.lab.memory_budget import check_allocation
from contrapose.lab.modalities.images.decoding import Problem, attempt, decode

Target = dict[str, Tensor]
Sample = tuple[Tensor, Target]
_LAYOUTS = (
    "VOC (VOC2007/ and others with Annotations/, JPEGImages/ and ImageSets/Main/) or COCO "
    "(annotations/instances_train2017.json and instances_val2017.json with folders train2017/ and val2017/)"
)


class BoxData:
    """Images with boxes, read from disk one by one; classes are numbered from 1, since 0 is the background.

    index       images, classes and boxes in COCO's form
    masks       whether to return the objects' masks too
    boxes_only  whether images without a box are left out, as in training
    """

    def __init__(self, index: BoxIndex, *, masks: bool = False, boxes_only: bool = False) -> None:
        with needs_extra("detection", "detection", {"pycocotools", "torchmetrics"}):
            from pycocotools.coco import COCO

            version("torchmetrics")  # a missing package is reported here and not after hours of training

        self.masks = masks
        self.coco = COCO()
        self.coco.dataset = index
        with redirect_stdout(io.StringIO()):  # pycocotools prints what it does
            self.coco.createIndex()
        self.categories: list[int] = sorted(self.coco.cats)
        self.classes = tuple(self.coco.cats[category]["name"] for category in self.categories)
        self.image_ids = [image["id"] for image in index["images"]]
        if boxes_only:
            self.image_ids = [image_id for image_id in self.image_ids if self._objects(image_id)]

    def __len__(self) -> int:
        return len(self.image_ids)

    def __getitem__(self, position: int) -> Sample:
        """Return an image (3, H, W) in [0, 1], and its target: boxes (x₁, y₁, x₂, y₂), labels and masks (n, H, W)."""
        image_id = self.image_ids[position]
        entry = self.coco.imgs[image_id]
        pixels = attempt(decode, Path(entry["file_name"]))
        if isinstance(pixels, Problem):
            raise ValueError(f"data: {pixels.path} cannot be read: {pixels.why}")
        # If an image was resized after it was annotated, all of its boxes would be in the wrong place.
        if pixels.shape[1:] != (entry["height"], entry["width"]):
            raise ValueError(
                f"data: {entry['file_name']} has {pixels.shape[2]} × {pixels.shape[1]} pixels, but its annotation says "
                f"{entry['width']} × {entry['height']}"
            )
        return pixels.float() / 255, self._target(image_id, self._objects(image_id))

    def annotated(self, position: int) -> Target:
        """Return all objects in an image, for the score; `iscrowd` marks objects that the score ignores."""
        image_id = self.image_ids[position]
        annotations = self.coco.imgToAnns[image_id]
        crowds = torch.tensor([a["iscrowd"] for a in annotations], dtype=torch.int64)
        return {**self._target(image_id, annotations), "iscrowd": crowds}

    def _objects(self, image_id: int) -> list[dict[str, Any]]:
        """Return the annotations to train on: without crowds, and without the few COCO boxes that have no area."""
        annotations: list[dict[str, Any]] = self.coco.imgToAnns[image_id]
        return [a for a in annotations if not a.get("iscrowd") and a["bbox"][2] > 0 and a["bbox"][3] > 0]

    def _target(self, image_id: int, objects: Sequence[dict[str, Any]]) -> Target:
        boxes = torch.tensor([a["bbox"] for a in objects], dtype=torch.float32).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        labels = torch.tensor([1 + self.categories.index(a["category_id"]) for a in objects], dtype=torch.int64)
        target = {"boxes": boxes, "labels": labels}
        if self.masks:
            entry = self.coco.imgs[image_id]
            # An annotation of a few bytes becomes a mask of the whole image, and the masks are copied once.
            needed = 2 * len(objects) * entry["height"] * entry["width"]
            check_allocation(needed, f"data: the set of {len(objects):,} masks of {entry['file_name']}")
            masks = [torch.from_numpy(self.coco.annToMask(a)) for a in objects]
            empty = torch.zeros(0, entry["height"], entry["width"], dtype=torch.uint8)
            target["masks"] = torch.stack(masks) if masks else empty
        return target


@dataclass(frozen=True)
class DetectionData:
    """Images to fine-tune on and images to test on, with the same classes."""

    train: BoxData
    test: BoxData
    notes: tuple[str, ...] = ()  # what was left out

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the names of the classes."""
        return self.train.classes


def read_detection_data(folder: str | Path, *, masks: bool = False) -> DetectionData:
    """Read a VOC or COCO folder.

    folder   VOCdevkit: all years' `trainval` images are for training, and all years' `test` images for testing; or a COCO
             folder, with the instances of train2017 and val2017
    masks    whether to read masks too, which VOC does not have
    """
    folder = Path(folder)
    years, train_file, test_file = voc_folders(folder), coco_file(folder, "train"), coco_file(folder, "val")
    if train_file is not None and test_file is not None:
        train, test = (read_coco(file, masks=masks) for file in (train_file, test_file))
    elif years:
        if masks:
            raise ValueError(f"masks: {folder} is a VOC folder, whose annotations have boxes only; omit --masks")
        classes = voc_classes(folder)
        # Objects marked difficult are used in training, as in detectron2, and ignored by the score.
        train = read_voc(years, "trainval", classes, difficult=True)
        test = read_voc(years, "test", classes, difficult=False)
    else:
        missing = "" if folder.is_dir() else ", and it does not exist"
        raise ValueError(f"data: expected a folder of {_LAYOUTS}, got {folder}{missing}")
    return _split(train, test, masks=masks, folder=folder)


def _split(train: BoxIndex, test: BoxIndex, *, masks: bool, folder: Path) -> DetectionData:
    data = DetectionData(BoxData(train, masks=masks, boxes_only=True), BoxData(test, masks=masks))
    if data.train.classes != data.test.classes:
        raise ValueError(f"data: the training and test annotations of {folder} have different classes")
    for part, images in (("training", data.train), ("test", data.test)):
        if not any(images._objects(image_id) for image_id in images.image_ids):
            raise ValueError(f"data: no {part} image of {folder} has a box")
    without = len(train["images"]) - len(data.train)
    notes = (f"{without:,} training images without a box are left out",) if without else ()
    return DetectionData(data.train, data.test, notes)
