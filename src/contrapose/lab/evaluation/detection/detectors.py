"""torchvision's Faster and Mask R-CNN around an encoder, in the C4 variant.

All encoder stages but the last compute the feature map on which regions are proposed. Each region is pooled to 14 × 14
and goes through the last stage, followed by a batch norm, as in He et al. (MoCo). Boxes and classes are predicted from the
average of the resulting 7 × 7 map, and masks from the map itself.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from contrapose.lab.networks.encoder import Encoder
from contrapose.lab.networks.norms import ordinary_norms

_ANCHORS = (32, 64, 128, 256, 512)  # side lengths of the anchors, for images whose shorter side has 800 pixels


def split_encoder(encoder: Encoder) -> tuple[nn.Sequential, nn.Module]:
    """Split a ResNet (torchvision's or timm's), `tiny` or `small` into all stages but the last, and the last stage."""
    network = encoder.network
    children = OrderedDict(network.named_children())
    if "layer4" in children:
        names = list(children)
        stem = OrderedDict((name, children[name]) for name in names[: names.index("layer4")])
        return nn.Sequential(stem), children["layer4"]
    if isinstance(network, nn.Sequential) and isinstance(network[-2], nn.AdaptiveAvgPool2d):
        return network[:-3], network[-3]
    raise ValueError(
        "run: detection needs an encoder with stages, that of a ResNet (such as resnet50 or resnet18-cifar), tiny or small"
    )


class _Backbone(nn.Module):
    """All stages of an encoder but the last; torchvision requires the attribute `out_channels`."""

    def __init__(self, stages: nn.Module, out_channels: int) -> None:
        super().__init__()
        self.stages, self.out_channels = stages, out_channels

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.stages(images)
        return features


def build_detector(
    encoder: Encoder,
    classes: int,
    *,
    masks: bool = False,
    sizes: Sequence[int] = (800,),
    regions: int = 512,
    mean: Sequence[float] = (0.485, 0.456, 0.406),
    std: Sequence[float] = (0.229, 0.224, 0.225),
) -> nn.Module:
    """Return a detector with a copy of the encoder's weights: Mask R-CNN if `masks`, else Faster R-CNN.

    encoder     network whose stages become backbone and head
    classes     number of classes, without the background
    masks       whether masks are predicted too
    sizes       lengths of an image's shorter side; training draws one per image, and tests use the last length
    regions     number of regions per image from which the head learns
    mean, std   mean and standard deviation of the encoder's inputs, one value per channel
    """
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.faster_rcnn import FasterRCNN, FastRCNNPredictor
    from torchvision.models.detection.mask_rcnn import MaskRCNN, MaskRCNNPredictor
    from torchvision.ops import MultiScaleRoIAlign

    from contrapose.lab.evaluation.detection.heads import SharedHeads

    encoder = copy.deepcopy(encoder).requires_grad_()
    ordinary_norms(encoder)  # MoCo's split batch norms need a divisible batch, but the number of regions varies
    stages, last = split_encoder(encoder)
    scale = sizes[-1] / 800
    anchors = tuple(max(1, round(side * scale)) for side in _ANCHORS)
    # He et al. add a batch norm, because the output of the last stage has no fixed scale that a head could rely on.
    head = nn.Sequential(last, nn.BatchNorm2d(encoder.width))
    options: dict[str, Any] = {
        "min_size": tuple(sizes),
        "max_size": round(1333 * scale),
        "image_mean": list(mean),
        "image_std": list(std),
        "rpn_anchor_generator": AnchorGenerator((anchors,), ((0.5, 1.0, 2.0),)),
        # The numbers of proposals are those in detectron2's C4 models, in proportion to `regions`.
        "rpn_pre_nms_top_n_train": 24 * regions,
        "rpn_post_nms_top_n_train": 4 * regions,
        "rpn_pre_nms_top_n_test": 12 * regions,
        "rpn_post_nms_top_n_test": 2 * regions,
        "box_batch_size_per_image": regions,
        "box_roi_pool": _pool(MultiScaleRoIAlign),
        "box_head": nn.Sequential(head, nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        "box_predictor": FastRCNNPredictor(encoder.width, classes + 1),
    }
    backbone = _Backbone(stages, _channels(stages))
    if not masks:
        return FasterRCNN(backbone, **options)  # type: ignore[no-any-return]
    options |= {
        "mask_roi_pool": _pool(MultiScaleRoIAlign),
        "mask_head": head,  # shares its weights with the box head
        "mask_predictor": MaskRCNNPredictor(encoder.width, 256, classes + 1),
    }
    detector = MaskRCNN(backbone, **options)
    # Changing the object's class keeps everything else that torchvision has set up.
    detector.roi_heads.__class__ = SharedHeads
    return detector  # type: ignore[no-any-return]


def _pool(align: Any) -> Any:
    # A sampling ratio of 0 takes as many samples as a region has pixels, as detectron2 does.
    return align(featmap_names=["0"], output_size=14, sampling_ratio=0)


def _channels(stages: nn.Module) -> int:
    """Return the number of channels in the feature map."""
    norms = [module for module in stages.modules() if isinstance(module, nn.BatchNorm2d)]
    return int(norms[-1].num_features)
