"""Images with captions: settings of the smoke scale, and zero-shot classification on data that the user gives.

image_to_text_recall_K, text_to_image_recall_K   entries of the records: recall at K = 1, 5 and 10 of the test images
zero_shot:SET                accuracy on the test images of --data SET=PATH, classified by the names of their classes
zero_shot:SET:class_names    with names from a file, --data class_names=FILE: a folder may have other names, such as ImageNet's
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contrapose.lab.modalities import Source, Split
from contrapose.lab.modalities.captions.shapes import labelled_shapes
from contrapose.lab.modalities.captions.zero_shot import TEMPLATES, class_embeddings, find_class_names, zero_shot_scores
from contrapose.lab.modalities.images.class_names import CLASS_NAMES
from contrapose.lab.modalities.images.load import load
from contrapose.lab.studies.downstream import CLASS_NAMES_FILE, MADE
from contrapose.lab.training import Model

# Seconds on a CPU: a few of the built-in shapes.
SMOKE_CAPTIONS: Mapping[str, Any] = {
    "limit": 128, "stream": False, "views": "captions", "size": 32, "encoder": "tiny", "text_encoder": "tiny", "text_length": 16,
    "width": 64, "optimiser": "adamw", "lr": 1e-3, "schedule": "cosine", "warmup": 0.0, "weight_decay": 0.1, "epochs": 2,
    "batch": 32, "precision": "fp32", "knn_every": 2, "metrics": 48,
}  # fmt: skip
_PROMPT = "photo"
_DIRECTIONS = {"image_to_text": "of captions by their images", "text_to_image": "of images by their captions"}


def zero_shot(
    model: Model, split: Split, name: str, names: str = "", *, downstream: Mapping[str, str],
    root: Path | None = None,
) -> dict[str, float]:  # fmt: skip
    """Return the accuracy on the downstream data `name`, with class names from a file if `names` says so."""
    images = labelled_shapes() if downstream[name] == MADE else _labelled_images(downstream[name], root)
    assert images.labels is not None
    file = downstream[CLASS_NAMES_FILE] if names else ""
    # An .npz file has no names, but the study knows which data set it is.
    built_in = name if not images.classes and name in CLASS_NAMES else ""
    classes = find_class_names(images, built_in if file in ("", MADE) else file)
    embeddings = model.towers["images"].features(images)
    texts = class_embeddings(model.towers["text"].embed, classes, TEMPLATES[_PROMPT]).to(embeddings.device)
    return {
        ":".join(filter(None, ("zero_shot", name, names))): zero_shot_scores(embeddings, images.labels, texts)["top1"]
    }


def _labelled_images(data: str, root: Path | None) -> Source:
    """List the test images of a data set; all of its images if it has no others."""
    images = load(data, root=root, hold_out=0).held_out
    if images.labels is None:
        raise ValueError(f"data: the images of {data} have no classes; expected a folder with one subfolder per class")
    return images


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
