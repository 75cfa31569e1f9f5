"""Heads of a C4 detector: torchvision's heads, except that masks and boxes are predicted from the same feature maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchvision.models.detection.roi_heads import RoIHeads, fastrcnn_loss, maskrcnn_loss


class SharedHeads(RoIHeads):  # type: ignore[misc]
    """Heads that pass each training region through the last stage only once, as detectron2's Res5ROIHeads do.

    torchvision passes the regions with objects through the last stage a second time, for their masks. The batch norm statistics
    would then mix two distributions, all regions and the regions with objects, and fit neither.
    """

    def forward(
        self,
        features: dict[str, Tensor],
        proposals: list[Tensor],
        image_shapes: list[tuple[int, int]],
        targets: Sequence[dict[str, Tensor]] | None = None,
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        """Return the detections and, in training, the losses."""
        if not self.training or not self.has_mask():
            result: Any = super().forward(features, proposals, image_shapes, targets)
            return result  # type: ignore[no-any-return]
        assert targets is not None
        proposals, matches, labels, regression_targets = self.select_training_samples(proposals, targets)
        maps = self.mask_head(self.box_roi_pool(features, proposals, image_shapes))
        class_logits, box_regression = self.box_predictor(maps.mean((2, 3)))
        class_loss, box_loss = fastrcnn_loss(class_logits, box_regression, labels, regression_targets)
        objects = [of_image > 0 for of_image in labels]
        mask_loss = maskrcnn_loss(
            self.mask_predictor(maps[torch.cat(objects)]),
            [boxes[kept] for boxes, kept in zip(proposals, objects, strict=True)],
            [target["masks"] for target in targets],
            [target["labels"] for target in targets],
            [match[kept] for match, kept in zip(matches, objects, strict=True)],
        )
        return [], {"loss_classifier": class_loss, "loss_box_reg": box_loss, "loss_mask": mask_loss}
