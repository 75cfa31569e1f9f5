"""Images with captions: zero-shot classification on data that the user gives.

image_to_text_recall_K, text_to_image_recall_K   entries of the records: recall at K = 1, 5 and 10 of the test images
zero_shot:SET                accuracy on the test images of --data SET=PATH, classified by the names of their classes
zero_shot:SET:class_names    with names from a file, --data class_names=FILE: a folder may have other names, such as ImageNet's
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from contrapose.lab.evaluation import TEMPLATES
from contrapose.lab.modalities import Split
from contrapose.lab.modalities.evaluations import DownstreamData
from contrapose.lab.studies.downstream import CLASS_NAMES_FILE, MADE
from contrapose.lab.training import Model

_PROMPT = "photo"
_DIRECTIONS = {"image_to_text": "of captions by their images", "text_to_image": "of images by their captions"}


def zero_shot(
    model: Model, split: Split, name: str, names: str = "", *, downstream: Mapping[str, str],
    root: Path | None = None,
) -> dict[str, float]:  # fmt: skip
    """Return the accuracy on the downstream data `name`, with class names from a file if `names` says so."""
    path, file = downstream[name], downstream[CLASS_NAMES_FILE] if names else ""
    data = DownstreamData(
        name=name,
        path="" if path == MADE else path,
        split=split,
        class_names="" if file == MADE else file,
        root=root,
    )
    scores = model.kind.downstream["zero_shot"](model.towers, data)
    return {":".join(filter(None, ("zero_shot", name, names))): scores["top1"]}


def is_caption_recall(measure: str) -> bool:
    """Return whether a measure is the recall of images with captions in the records.

    >>> is_caption_recall("text_to_image_recall_10"), is_caption_recall("recall_hits")
    (True, False)
    """
    return measure.rpartition("_recall_")[0] in _DIRECTIONS


def describe_caption_measure(measure: str) -> tuple[str, str]:
    """Return in words what is measured by one of the measures of this module, and of what.

    >>> describe_caption_measure("text_to_image_recall_10")
    ('recall@10', ' of images by their captions in the test set, last epoch')
    """
    if is_caption_recall(measure):
        direction, _, rank = measure.rpartition("_recall_")
        return f"recall@{rank}", f" {_DIRECTIONS[direction]} in the test set, last epoch"
    data_set, prompt = measure.split(":")[1], TEMPLATES[_PROMPT][0]
    return (
        f"accuracy on {data_set}",
        f', zero-shot: the class whose name in "{prompt}" has the largest cosine with the image',
    )
