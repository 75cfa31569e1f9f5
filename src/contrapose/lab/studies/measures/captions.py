"""Measures of images with captions: zero-shot classification on the user's data, and recall in the records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contrapose.lab.evaluation.zero_shot import TEMPLATES, class_embeddings, find_class_names, zero_shot_scores
from contrapose.lab.modalities import Source
from contrapose.lab.modalities.captions.shapes import labelled_shapes
from contrapose.lab.modalities.images.class_names import CLASS_NAMES
from contrapose.lab.modalities.images.load import load
from contrapose.lab.studies.measures.downstream import CLASS_NAMES_FILE, MADE, DownstreamEvaluation
from contrapose.lab.studies.measures.measure import Context, Words
from contrapose.lab.studies.measures.records import RecordEntry
from contrapose.lab.training import Run
from contrapose.lab.training.caption_model import CaptionModel

# Seconds on a CPU: a few of the built-in shapes.
SMOKE_CAPTIONS: Mapping[str, Any] = {
    "limit": 128, "stream": False, "views": "captions", "size": 32, "encoder": "tiny", "text_encoder": "tiny", "text_length": 16,
    "width": 64, "optimiser": "adamw", "lr": 1e-3, "schedule": "cosine", "warmup": 0.0, "weight_decay": 0.1, "epochs": 2,
    "batch": 32, "precision": "fp32", "knn_every": 2, "metrics": 48,
}  # fmt: skip
_PROMPT = "photo"
_DIRECTIONS = {"image_to_text": "of captions by their images", "text_to_image": "of images by their captions"}


@dataclass(frozen=True)
class ZeroShot(DownstreamEvaluation):
    """Accuracy on the test images of a data set, classified by the names of their classes."""

    class_names: bool = False  # names from --data class_names=FILE: a folder may have other names, such as ImageNet's
    towers = 2

    @property
    def key(self) -> str:
        """Return zero_shot:SET or zero_shot:SET:class_names."""
        return ":".join(("zero_shot", *self.needs_data))

    @property
    def files(self) -> tuple[str, ...]:
        """Return the file of class names, if it needs one."""
        return (CLASS_NAMES_FILE,) if self.class_names else ()

    def describe(self, run: Run) -> Words:
        """Return the data set and the prompt."""
        prompt = TEMPLATES[_PROMPT][0]
        of = f', zero-shot: the class whose name in "{prompt}" has the largest cosine with the image'
        return Words(f"accuracy on {self.data_set}", of)

    def evaluate(self, context: Context) -> dict[str, float]:
        """Return the accuracy."""
        model, path = context.model, context.downstream[self.data_set]
        assert isinstance(model, CaptionModel)
        images = labelled_shapes() if path == MADE else _labelled_images(path, context.data_root)
        assert images.labels is not None
        file = context.downstream[CLASS_NAMES_FILE] if self.class_names else ""
        # An .npz file has no names, but the study knows which data set it is.
        built_in = self.data_set if not images.classes and self.data_set in CLASS_NAMES else ""
        classes = find_class_names(images, built_in if file in ("", MADE) else file)
        embeddings = model.images.features(images)
        texts = class_embeddings(model.text.embed, classes, TEMPLATES[_PROMPT]).to(embeddings.device)
        return {self.key: zero_shot_scores(embeddings, images.labels, texts)["top1"]}


def _labelled_images(data: str, root: Path | None) -> Source:
    """List the test images of a data set; all of its images if it has no others."""
    images = load(data, root=root, hold_out=0).held_out
    if images.labels is None:
        raise ValueError(f"data: the images of {data} have no classes; expected a folder with one subfolder per class")
    return images


def caption_recall(direction: str, k: int) -> RecordEntry:
    """Return the recall at k of the test images in the records; `direction` is image_to_text or text_to_image."""
    return RecordEntry(
        f"{direction}_recall_{k}", Words(f"recall@{k}", f" {_DIRECTIONS[direction]} in the test set, last epoch")
    )
