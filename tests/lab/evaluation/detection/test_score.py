"""Average precision equals that of COCO's own code, for boxes and for masks."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest
import torch
from pycocotools import mask as run_lengths
from pycocotools.cocoeval import COCOeval

from contrapose.lab.evaluation.detection import BoxData, average_precision, draw_shapes, read_detection_data
from contrapose.lab.evaluation.detection.data import Target

PERFECT = {"AP": 100.0, "AP50": 100.0, "AP75": 100.0, "mask_AP": 100.0, "mask_AP50": 100.0, "mask_AP75": 100.0}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> BoxData:
    folder = draw_shapes(tmp_path_factory.mktemp("coco"), layout="coco", train=1, test=12, size=64)
    return read_detection_data(folder, masks=True).test


def detect(images: BoxData, *, shift: int = 0) -> list[Target]:
    """Return the annotations as a detector's output, shifted to the right."""
    targets = [images.annotated(position) for position in range(len(images))]
    return [
        {
            "boxes": target["boxes"] + torch.tensor([shift, 0, shift, 0]),
            "labels": target["labels"],
            "scores": torch.full((len(target["labels"]),), 0.9),
            "masks": target["masks"].roll(shift, dims=2)[:, None].float(),
        }
        for target in targets
    ]


def score(images: BoxData, predictions: Sequence[Target], *, masks: bool = False) -> dict[str, float]:
    pairs = ((prediction, images.annotated(position)) for position, prediction in enumerate(predictions))
    return average_precision(pairs, masks=masks)


def score_by_pycocotools(images: BoxData, predictions: Sequence[Target], kind: str) -> list[float]:
    results = []
    for position, prediction in enumerate(predictions):
        for (x1, y1, x2, y2), label, value, mask in zip(
            *(prediction[key].tolist() for key in ("boxes", "labels", "scores")), prediction["masks"], strict=True
        ):
            results.append(
                {
                    "image_id": images.image_ids[position],
                    "category_id": images.categories[label - 1],
                    "bbox": [x1, y1, x2 - x1, y2 - y1],
                    "score": value,
                    "segmentation": run_lengths.encode(np.asfortranarray(mask[0].numpy().astype(np.uint8))),
                }
            )
    with redirect_stdout(io.StringIO()):
        evaluation = COCOeval(images.coco, images.coco.loadRes(results), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return [100 * float(value) for value in evaluation.stats[:3]]


def test_perfect_and_shifted_detections(images: BoxData) -> None:
    assert score(images, detect(images), masks=True) == pytest.approx(PERFECT)
    near, far = (score(images, detect(images, shift=shift), masks=True) for shift in (2, 12))
    for kind in ("", "mask_"):
        assert near[f"{kind}AP50"] > 95
        assert near[f"{kind}AP"] < 90
        assert far[f"{kind}AP50"] < 20
    nothing = [{key: tensor[:0] for key, tensor in prediction.items()} for prediction in detect(images)]
    assert score(images, nothing, masks=True) == dict.fromkeys(PERFECT, 0.0)


@pytest.mark.parametrize("seed", [1, 3])
def test_noisy_detections_score_as_in_pycocotools(tmp_path: Path, seed: int) -> None:
    folder = draw_shapes(tmp_path, layout="coco", train=1, test=40, size=64)
    path = folder / "annotations/instances_val2017.json"
    content = json.loads(path.read_text())
    for annotation in content["annotations"][::7]:
        annotation["iscrowd"] = 1
    path.write_text(json.dumps(content))
    images = read_detection_data(folder, masks=True).test
    random = torch.Generator().manual_seed(seed)
    predictions = []
    for target in (images.annotated(position) for position in range(len(images))):
        labels = target["labels"].repeat(3)
        boxes = target["boxes"].repeat(3, 1) + torch.randint(-3, 4, (len(labels), 4), generator=random)
        swapped = torch.rand(len(labels), generator=random) < 0.2
        shift = int(torch.randint(-3, 4, (1,), generator=random))
        predictions.append(
            {
                "boxes": boxes,
                "labels": torch.where(swapped, 3 - labels, labels),
                "scores": torch.randint(1, 20, (len(labels),), generator=random) / 20,  # with ties
                "masks": target["masks"].repeat(3, 1, 1).roll(shift, dims=2)[:, None].float(),
            }
        )
    expected = [value for kind in ("bbox", "segm") for value in score_by_pycocotools(images, predictions, kind)]
    ours = score(images, predictions, masks=True)
    assert list(ours.values()) == pytest.approx(expected, rel=1e-6)
    assert 10 < ours["AP"] < 60


def test_a_wrong_class_and_a_false_alarm_cost_precision(images: BoxData) -> None:
    swapped = [{**prediction, "labels": 3 - prediction["labels"]} for prediction in detect(images)]
    assert score(images, swapped)["AP50"] < 20
    # A false alarm above all right detections lowers the precision at every recall.
    first, *others = detect(images)
    alarm = {
        "boxes": torch.tensor([[0.0, 0.0, 3.0, 3.0]]),
        "labels": first["labels"][:1],
        "scores": torch.tensor([0.99]),
    }
    assert 50 < score(images, [{key: torch.cat((alarm[key], first[key])) for key in alarm}, *others])["AP"] < 99


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
    assert score(images, detect(images))["AP"] == pytest.approx(100.0)
