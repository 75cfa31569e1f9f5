"""Average precision of detections by COCO's definition, computed by torchmetrics and pycocotools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

from contrapose.lab.evaluation.detection.data import Target

_SCORES = {"AP": "map", "AP50": "map_50", "AP75": "map_75"}  # mean over IoU 0.5 to 0.95, at 0.5, and at 0.75


def average_precision(
    detections: Iterable[tuple[Mapping[str, Tensor], Target]], *, masks: bool = False
) -> dict[str, float]:
    """Return AP, AP50 and AP75 of boxes in per cent, averaged over classes; with masks also mask_AP, mask_AP50 and mask_AP75.

    detections   for each image, the detector's output and the result of `BoxData.annotated`
    masks        whether to score masks too
    """
    import numpy as np
    from torchmetrics.detection import MeanAveragePrecision

    metric = MeanAveragePrecision(
        iou_type=("bbox", "segm") if masks else ("bbox",),
        # COCO's thresholds in float64. torchmetrics' defaults are float32, in which a recall of 3 / 5 is below 0.6.
        iou_thresholds=np.linspace(0.5, 0.95, 10).tolist(),
        rec_thresholds=np.linspace(0, 1, 101).tolist(),
    )
    for prediction, target in detections:
        result = {key: prediction[key].cpu() for key in ("boxes", "labels", "scores")}
        if masks:
            result["masks"] = (prediction["masks"][:, 0] > 0.5).cpu()  # from probabilities (n, 1, H, W)
        metric.update([result], [target])
    values = metric.compute()
    prefixes = {"": "bbox_", "mask_": "segm_"} if masks else {"": ""}  # our prefixes -> torchmetrics' prefixes
    return {
        f"{ours}{name}": 100 * float(values[f"{theirs}{key}"])
        for ours, theirs in prefixes.items()
        for name, key in _SCORES.items()
    }
