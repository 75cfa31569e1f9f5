"""VOC and COCO folders give the same images and boxes, and a broken annotation is refused with the name of its file."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from contrapose.lab.evaluation.detection import draw_shapes, read_detection_data


@pytest.fixture
def voc(tmp_path: Path) -> Path:
    return draw_shapes(tmp_path / "voc", layout="voc", train=4, test=2, size=40)


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    return draw_shapes(tmp_path / "coco", layout="coco", train=4, test=2, size=40)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert re.search(old, text)
    path.write_text(re.sub(old, new, text, count=1))


def edit_json(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_both_layouts_have_the_same_boxes(voc: Path, coco: Path) -> None:
    of_voc, of_coco = read_detection_data(voc), read_detection_data(coco, masks=True)
    assert of_voc.classes == of_coco.classes == ("rectangle", "ellipse")
    for parts, count in (((of_voc.train, of_coco.train), 4), ((of_voc.test, of_coco.test), 2)):
        assert [len(part) for part in parts] == [count, count]
        for (image, target), (twin, other) in zip(*([part[i] for i in range(count)] for part in parts), strict=True):
            assert image.shape == (3, 40, 40)
            assert torch.equal(image, twin)
            assert torch.equal(target["boxes"], other["boxes"])
            assert torch.equal(target["labels"], other["labels"])


def test_a_box_is_where_its_object_is(coco: Path) -> None:
    """The mask of a rectangle fills its box, and its pixels have one colour; those around it have not."""
    images = read_detection_data(coco, masks=True).train
    rectangles = 0
    for image, target in (images[i] for i in range(len(images))):
        for box, label, mask in zip(target["boxes"].long().tolist(), target["labels"], target["masks"], strict=True):
            if label != 1:
                continue
            left, top, right, bottom = box
            assert mask[top:bottom, left:right].all()
            assert int(mask.sum()) == (right - left) * (bottom - top)
            inside = image[:, top + 2 : bottom - 2, left + 2 : right - 2]
            assert inside.std(dim=(1, 2)).max() < 0.03  # JPEG noise
            rectangles += 1
    assert rectangles


def test_drawing_is_deterministic(tmp_path: Path, voc: Path) -> None:
    again, other = (draw_shapes(tmp_path / str(s), train=4, test=2, size=40, seed=s) for s in (0, 1))
    for path in sorted(voc.rglob("*.*")):
        assert path.read_bytes() == (again / path.relative_to(voc)).read_bytes()
    image = "VOC2007/JPEGImages/000000.jpg"
    assert (voc / image).read_bytes() != (other / image).read_bytes()
    with pytest.raises(ValueError, match="layout: expected one of 'voc', 'coco', got 'yolo'"):
        draw_shapes(tmp_path / "x", layout="yolo")


def test_difficult_objects_are_learned_and_not_scored(voc: Path) -> None:
    before = read_detection_data(voc)
    for name in ("000000", "100000"):
        edit(voc / f"VOC2007/Annotations/{name}.xml", "<difficult>0", "<difficult>1")
    after = read_detection_data(voc)
    assert len(after.train[0][1]["boxes"]) == len(before.train[0][1]["boxes"])
    assert len(after.test[0][1]["boxes"]) == len(before.test[0][1]["boxes"]) - 1


def test_years_are_joined(voc: Path) -> None:
    shutil.copytree(voc / "VOC2007", voc / "VOC2012")
    (voc / "VOC2012/ImageSets/Main/test.txt").unlink()
    data = read_detection_data(voc)
    assert (len(data.train), len(data.test)) == (8, 2)


def test_images_without_a_box_are_left_out_of_training(voc: Path) -> None:
    for name in ("000000", "100000"):
        edit(voc / f"VOC2007/Annotations/{name}.xml", r"<object>.*</object>", "")
    data = read_detection_data(voc)
    assert data.notes == ("1 training images without a box are left out",)
    assert (len(data.train), len(data.test)) == (3, 2)
    assert data.test[0][1]["boxes"].shape == (0, 4)


XML = "VOC2007/Annotations/000000.xml"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("<name>[a-z]+", "<name>elipse", "000000.xml: class 'elipse' is unknown; did you mean 'ellipse'?"),
        ("<xmax>[0-9]+", "<xmax>400", "is not in its image of 40 × 40"),
        ("<xmin>[0-9]+", "<xmin>-7", "is not in its image of 40 × 40"),
        ("<ymax>[0-9]+", "<ymax>many", "000000.xml: expected a number in <bndbox><ymax>, got 'many'"),
        ("<ymax>[0-9]+</ymax>", "", "000000.xml: expected a number in <bndbox><ymax>, got None"),
        ("</annotation>", "", "000000.xml is not XML"),
        ("<width>[0-9]+", "<width>1e400", "000000.xml: expected a number in <size><width>, got '1e400'"),
        ("<height>[0-9]+", "<height>0", "000000.xml: expected a width and a height in pixels, got 40 and 0"),
        ("^", '<?xml version="1.0" encoding="none"?>', "000000.xml is not XML"),
    ],
)
def test_broken_voc_annotations(voc: Path, old: str, new: str, message: str) -> None:
    edit(voc / XML, old, new)
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        read_detection_data(voc)
    assert str(voc / XML) in str(error.value)


def test_missing_files_of_voc(voc: Path) -> None:
    image, annotation = voc / "VOC2007/JPEGImages/000000.jpg", voc / XML
    text = annotation.read_text()
    annotation.unlink()
    with pytest.raises(ValueError, match=re.escape(f"{annotation} does not exist, but its image is listed")):
        read_detection_data(voc)
    annotation.write_text(text)
    image.rename(image.with_suffix(".gone"))
    with pytest.raises(ValueError, match=re.escape(f"{image} does not exist, but {annotation} lists it")):
        read_detection_data(voc)
    image.with_suffix(".gone").rename(image)
    (voc / "VOC2007/ImageSets/Main/test.txt").unlink()
    with pytest.raises(ValueError, match=r"Main/test.txt does not exist"):
        read_detection_data(voc)
    with pytest.raises(
        ValueError, match=r"expected a folder of VOC .* or COCO .*, got .*nowhere, and it does not exist"
    ):
        read_detection_data(voc / "nowhere")
    with pytest.raises(ValueError, match=r"masks: .* is a VOC folder, whose annotations have boxes only; omit --masks"):
        read_detection_data(voc, masks=True)


def first(content: dict[str, Any]) -> dict[str, Any]:
    annotation: dict[str, Any] = content["annotations"][0]
    return annotation


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: first(c).update(category_id=9), "annotation 1 is of category 9, which the file does not list"),
        (lambda c: first(c).update(image_id=77), "annotation 1 is of image 77, which the file does not list"),
        (lambda c: first(c).update(bbox=[1, 2, 300, 4]), "is not in its image of 40 × 40"),
        (lambda c: first(c).update(bbox=[1, 2, 3]), "annotation 1: expected a bbox of 4 numbers, got [1, 2, 3]"),
        (lambda c: c.pop("categories"), "but it has no categories"),
        (lambda c: c["images"][0].pop("width"), "one of its images has no width"),
        (lambda c: c["images"][1].update(id=1), "two of its images have the same id"),
        (lambda c: c["images"][0].update(file_name="gone.jpg"), "gone.jpg does not exist"),
        (lambda c: c["images"][0].update(file_name="../../x.jpg"), "lists '../../x.jpg', which is outside of"),
        (lambda c: c["images"][0].update(file_name=None), "the file_name of one of its images is not a text: None"),
        (lambda c: c["images"][0].update(width=1e9), "image 1: 1000000000.0 × 40 pixels are more than 178 megapixels"),
        (
            lambda c: c["images"][0].update(height=None),
            "image 1: expected a width and a height in pixels, got 40 and None",
        ),
        (lambda c: c["images"].append(None), "expected an object for each of its images, got None"),
        (lambda c: c["images"][0].update(id=[1]), "expected a number as the id of each of its images, got [1]"),
        (lambda c: c["categories"].append({"id": 1, "name": "x"}), "two of its categories have the same id"),
        (lambda c: first(c).update(image_id=[1]), "annotation 1 is of image [1], which the file does not list"),
        (lambda c: first(c).update(bbox=[1, 2, float("inf"), 4]), "expected a bbox of 4 numbers, got [1, 2, inf, 4]"),
        (lambda c: first(c).update(iscrowd=[]), "annotation 1: expected 0 or 1 for iscrowd, got []"),
    ],
)
def test_broken_coco_annotations(coco: Path, change: Callable[[dict[str, Any]], object], message: str) -> None:
    path = coco / "annotations/instances_train2017.json"
    edit_json(path, change)
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        read_detection_data(coco)
    assert str(path) in str(error.value)


def test_masks_are_needed_only_if_they_are_asked_for(coco: Path) -> None:
    edit_json(coco / "annotations/instances_train2017.json", lambda c: first(c).pop("segmentation"))
    read_detection_data(coco)
    with pytest.raises(
        ValueError, match=r"masks: .*instances_train2017.json: annotation 1 has no segmentation; omit --masks"
    ):
        read_detection_data(coco, masks=True)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([[1, 2, 3, 4]], "its segmentation has [1, 2, 3, 4], expected the x and y of at least 3 points"),
        ([[1, 2, 3, 4, 5, None]], "expected the x and y of at least 3 points"),
        ([[0, 0, 1e9, 0, 0, 9]], "has a polygon that is not in its image"),
        ([[0, 0, 40, 40] * 10_000], "has an outline of more than 1,000,000 pixels"),
        ("polygon", "is neither a list of polygons nor an object with size and counts"),
        ({"size": [9, 9], "counts": [81]}, "has the size [9, 9], expected that of its image, [40, 40]"),
        ({"size": [40, 40], "counts": [1600, -1]}, "has counts that are not lengths of runs of pixels"),
        (
            {"size": [40, 40], "counts": [1, 2**31]},
            "has counts of 2.14748365e+09 pixels in all, but its image has 1,600",
        ),
        ({"size": [40, 40], "counts": "o" * 20}, "has counts that are not lengths of runs of pixels"),
        ({"size": [40, 40], "counts": "111"}, "has counts of 3 pixels in all, but its image has 1,600"),
    ],
)
def test_bad_masks_are_refused_before_they_are_drawn(coco: Path, mask: Any, message: str) -> None:
    """pycocotools draws them in C and would end the process."""
    path = coco / "annotations/instances_train2017.json"
    edit_json(path, lambda c: first(c).update(segmentation=mask))
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        read_detection_data(coco, masks=True)
    assert str(error.value).startswith(f"masks: {path}: annotation 1")


@pytest.mark.parametrize("compressed", [False, True])
def test_masks_of_runs_are_those_of_polygons(coco: Path, compressed: bool) -> None:
    from pycocotools import mask as masks

    path = coco / "annotations/instances_train2017.json"
    before = read_detection_data(coco, masks=True).train

    def encode(content: dict[str, Any]) -> None:
        for number, annotation in enumerate(content["annotations"]):
            if compressed:
                runs = masks.merge(masks.frPyObjects(annotation["segmentation"], 40, 40))
                annotation["segmentation"] = {"size": [40, 40], "counts": runs["counts"].decode()}
            else:
                drawn = before.coco.annToMask(before.coco.anns[number + 1])
                changes = np.flatnonzero(np.diff(drawn.T.reshape(-1), prepend=0))
                annotation["segmentation"] = {"size": [40, 40], "counts": np.diff([0, *changes, 1600]).tolist()}

    edit_json(path, encode)
    after = read_detection_data(coco, masks=True).train
    for number in range(len(before)):
        assert torch.equal(before[number][1]["masks"], after[number][1]["masks"])


def test_lists_that_lead_out_of_the_folder_or_are_not_text(voc: Path) -> None:
    path = voc / "VOC2007/ImageSets/Main/trainval.txt"
    path.write_text("../../x\n")
    with pytest.raises(ValueError, match=r"Main in .* lists '\.\./\.\./x', which is outside of Annotations/"):
        read_detection_data(voc)
    path.write_bytes(b"000000\nch\xe2teau\n")
    with pytest.raises(ValueError, match=r"trainval.txt is not UTF-8: byte 10 is 0xe2"):
        read_detection_data(voc)


def test_crowds_and_boxes_without_area_are_not_learned(coco: Path) -> None:
    path = coco / "annotations/instances_train2017.json"
    before = sum(len(sample[1]["boxes"]) for sample in _samples(coco))
    edit_json(path, lambda c: (first(c).update(iscrowd=1), c["annotations"][1].update(bbox=[3, 4, 0, 5])))
    assert sum(len(sample[1]["boxes"]) for sample in _samples(coco)) == before - 2


def _samples(folder: Path) -> list[Any]:
    images = read_detection_data(folder).train
    return [images[i] for i in range(len(images))]


def test_an_image_that_does_not_fit_its_annotation(voc: Path) -> None:
    image = voc / "VOC2007/JPEGImages/000000.jpg"
    Image.open(image).resize((20, 40)).save(image)
    data = read_detection_data(voc)
    with pytest.raises(ValueError, match=r"000000.jpg has 20 × 40 pixels, but its annotation says 40 × 40"):
        data.train[0]
    image.write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"000000.jpg cannot be read: its content is none of"):
        data.train[0]


def test_masks_beyond_the_budget_are_refused_before_they_are_drawn(coco: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = read_detection_data(coco, masks=True)
    assert data.train[0][1]["masks"].shape[1:] == (40, 40)
    monkeypatch.setenv("CONTRAPOSE_FILE_BUDGET", "1e-6")
    with pytest.raises(ValueError, match=r"data: the set of \d+ masks of .*000000\.jpg would take 1 GiB of memory"):
        data.train[0]
