"""Average precision is 100 for perfect detections and less for shifted ones, of boxes and of masks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from contrapose.lab.evaluation.detection import BoxData, average_precision, draw_shapes, read_detection_data
from contrapose.lab.evaluation.detection.score import as_results


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> BoxData:
    folder = draw_shapes(tmp_path_factory.mktemp("coco"), layout="coco", train=1, test=12, size=64)
    return read_detection_data(folder, masks=True).test


def detections(images: BoxData, *, shift: int = 0, score: float = 0.9) -> list[dict[str, object]]:
    """The annotations as a detector's output, shifted to the right."""
    results = []
    for position in range(len(images)):
        _, target = images[position]
        prediction: dict[str, Tensor] = {
            "boxes": target["boxes"] + torch.tensor([shift, 0, shift, 0]),
            "labels": target["labels"],
            "scores": torch.full((len(target["labels"]),), score),
            "masks": target["masks"].roll(shift, dims=2)[:, None].float(),
        }
        results += as_results(images, position, prediction)
    return results


@pytest.mark.parametrize("masks", [False, True])
def test_perfect_and_shifted_detections(images: BoxData, masks: bool) -> None:
    perfect = average_precision(images, detections(images), masks=masks)
    assert perfect == pytest.approx({"AP": 100.0, "AP50": 100.0, "AP75": 100.0})
    near = average_precision(images, detections(images, shift=2), masks=masks)
    assert near["AP50"] > 95
    assert near["AP"] < 90
    far = average_precision(images, detections(images, shift=12), masks=masks)
    assert far["AP50"] < 20
    assert average_precision(images, [], masks=masks) == {"AP": 0.0, "AP50": 0.0, "AP75": 0.0}


def test_a_wrong_class_and_a_false_alarm_cost_precision(images: BoxData) -> None:
    swapped = [{**d, "category_id": 3 - int(str(d["category_id"]))} for d in detections(images)]
    assert average_precision(images, swapped)["AP50"] < 20
    # A false alarm above all right detections lowers the precision at every recall.
    alarm = {**detections(images)[0], "bbox": [0.0, 0.0, 3.0, 3.0], "score": 0.99}
    assert 50 < average_precision(images, [alarm, *detections(images)])["AP"] < 99


def test_classes_need_not_be_numbered_from_one(tmp_path: Path) -> None:
    folder = draw_shapes(tmp_path, layout="coco", train=1, test=6, size=64)
    for path in (folder / "annotations").iterdir():
        text = (
            path.read_text()
            .replace('"category_id": 2', '"category_id": 44')
            .replace('{"id": 2, "name"', '{"id": 44, "name"')
        )
        path.write_text(text)
    images = read_detection_data(folder, masks=True).test
    assert set(images.categories) == {1, 44}
    assert {int(label) for i in range(6) for label in images[i][1]["labels"]} == {1, 2}
    assert average_precision(images, detections(images))["AP"] == pytest.approx(100.0)
