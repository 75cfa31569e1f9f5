"""Average precision of detections, computed by pycocotools."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any

from torch import Tensor

from contrapose.lab.evaluation.detection.data import BoxData

_NAMES = ("AP", "AP50", "AP75")  # the first three of COCOeval: mean over IoU 0.5 to 0.95, at 0.5, and at 0.75


def average_precision(data: BoxData, detections: Sequence[dict[str, Any]], *, masks: bool = False) -> dict[str, float]:
    """Return AP, AP50 and AP75 in per cent, of boxes or of masks; COCO's definition, the mean over classes.

    data         annotated images
    detections   what `as_results` returns, for all images together
    masks        whether the masks are scored, and not the boxes
    """
    from pycocotools.cocoeval import COCOeval

    if not detections:  # pycocotools does not take an empty list
        return dict.fromkeys(_NAMES, 0.0)
    with redirect_stdout(io.StringIO()):  # it prints what it does, and a table
        evaluation = COCOeval(data.coco, data.coco.loadRes(list(detections)), "segm" if masks else "bbox")
        evaluation.params.imgIds = data.image_ids
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return {name: 100 * float(value) for name, value in zip(_NAMES, evaluation.stats, strict=False)}


def as_results(data: BoxData, position: int, prediction: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """Return a detector's output for the image at this position of `data` in COCO's form for results."""
    boxes = prediction["boxes"].detach().cpu().clone()
    boxes[:, 2:] -= boxes[:, :2]
    results = [
        {
            "image_id": data.image_ids[position],
            "category_id": data.categories[label - 1],
            "bbox": box,
            "score": score,
        }
        for box, label, score in zip(
            boxes.tolist(), prediction["labels"].tolist(), prediction["scores"].tolist(), strict=True
        )
    ]
    if "masks" in prediction:
        for result, mask in zip(results, prediction["masks"], strict=True):
            result["segmentation"] = _encode(mask)
    return results


def _encode(mask: Tensor) -> Any:
    """Return the run-length code of a mask of probabilities (1, H, W): 100 masks of an image as bytes would fill memory."""
    import numpy as np
    from pycocotools import mask as coder

    return coder.encode(np.asfortranarray((mask[0] > 0.5).cpu().numpy().astype(np.uint8)))
