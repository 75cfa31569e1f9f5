"""Object detection and instance segmentation: an encoder fine-tuned as the backbone of Faster or Mask R-CNN.

data        VOC and COCO folders as images with boxes, classes and masks
voc, coco   readers for the two formats of annotation files
shapes      a data set of drawn shapes in either layout, for trials without VOC and COCO
detectors   torchvision's detectors around an encoder
heads       heads of Mask R-CNN that share the encoder's last stage
train       the papers' schedules, and the training loop
score       average precision, computed by torchmetrics and pycocotools
"""

from contrapose.lab.evaluation.detection.data import BoxData, DetectionData, read_detection_data
from contrapose.lab.evaluation.detection.detectors import build_detector
from contrapose.lab.evaluation.detection.score import average_precision
from contrapose.lab.evaluation.detection.shapes import draw_shapes
from contrapose.lab.evaluation.detection.train import PROTOCOLS, Detection

__all__ = [
    "PROTOCOLS",
    "BoxData",
    "Detection",
    "DetectionData",
    "average_precision",
    "build_detector",
    "draw_shapes",
    "read_detection_data",
]
