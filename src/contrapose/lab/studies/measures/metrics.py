"""Metrics of a run's outputs: on all images, as in the papers, and on the sample of images used for the records."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from contrapose.lab.evaluation import GEOMETRY, Measures, bias_values, features, partners, separation_values
from contrapose.lab.modalities import Split
from contrapose.lab.studies.measures.measure import Context, Evaluation, Measure, Words
from contrapose.lab.studies.run_directory import RunDirectory
from contrapose.lab.training import Model, Run
from contrapose.lab.training.initial_model import random_views
from contrapose.metrics import local_separation, prototype_deviations
from contrapose.pairs import unit

_NEAREST = 10  # neighbours in a local separation
_WORDS = {
    "uniformity": "uniformity",
    "tolerance": "tolerance",
    "alignment": "alignment of two views",
    "alignment_class": "alignment of images of one class",
    "interclass_uniformity": "inter-class uniformity",
    "conditional_entropy": "conditional entropy H(X⁻|X)",
    "prototype_bias_single": "prototype bias (Eq. 51)",
    "attraction_gap": "gap of the attracting bound",
    "repulsion_gap": "corrected gap of the repelling bound",
    "repulsion_gap_printed": "printed gap of the repelling bound",
    "separation_positive": "similarity of a view to its own image",
    "separation_gap": "gap between the positive and the nearest negative",
    **{f"separation_n{rank}": "similarity to the nearest negatives" for rank in range(1, _NEAREST + 1)},
}
_IMAGES = {
    "test": "all test images",
    "train": "all training images",
    "bank": "new views of all training images against the memory bank",
}
_SAMPLED = {"test": "test", "train": "training"}


@dataclass(frozen=True)
class Metric(Evaluation):
    """A metric of an output on all images, or on new views of all images compared with the run's memory bank."""

    kind = "metric"
    name: str  # name of a metric in the records
    space: str  # "projector" or "encoder"
    images: str = (
        "test"  # "test" or "train": all of these images; "bank": new views of all training images against the bank
    )

    def describe(self, run: Run) -> Words:
        """Describe the metric, the output and the images."""
        return Words(describe_metric(self.name), f" ({self.space}'s output, {_IMAGES[self.images]})")

    def older_keys(self, sample: str) -> dict[str, str]:
        """Return the entries NAME (projector) and encoder_NAME of the records, both measured on a sample.

        Older runs, whose keys did not contain the space, have NAME_whole for the projector's output on all test images. The
        description is empty if the entry was measured on the same images as this measure.
        """
        if self.space == "encoder":
            return {f"encoder_{self.name}": sample}
        return {f"{self.name}_whole": "" if self.images == "test" else "all test images", self.name: sample}

    def read_error(self, directory: RunDirectory) -> float | None:
        """Return the standard error, whose key contains the metric's name in the middle."""
        return replace(self, name=f"{self.name}_error").read(directory).value

    def missing_reason(self, directory: RunDirectory) -> str:
        """Return the reason; an older run may have recorded only the projector's output."""
        projector = replace(self, space="projector", images="test")
        if self.space == "encoder" and projector.read(directory).value is not None:
            return "recorded only for the projector's output; run the study again to measure the encoder's"
        return super().missing_reason(directory)

    def evaluate(self, context: Context) -> dict[str, Any]:
        """Return the metric and related metrics: computing the embeddings takes most of the time, so all are computed at once."""
        model, split = context.model, context.split
        model.eval()
        if self.images == "bank":
            values = separation(model, split)
        elif self.images == "train" and self.name.startswith("prototype_bias_single"):
            values = prototype_bias(model, split)
        else:
            source = split.train if self.images == "train" else split.held_out
            how = Measures(images=0, augmented=self.name not in GEOMETRY)
            values = model.measure(source, how, space=self.space)
        return {replace(self, name=name).key: value for name, value in values.items()}


@dataclass(frozen=True)
class RecordedMetric(Measure):
    """A metric of the projector's output on a sample of images, from the last record."""

    name: str

    def describe(self, run: Run) -> Words:
        """Describe the metric and the sample."""
        images = _SAMPLED[run.metrics_on]
        return Words(describe_metric(self.name), f" (projector's output, {run.metrics:,} random {images} images)")


def describe_metric(name: str) -> str:
    """Return a metric in words."""
    return _WORDS.get(name, name.replace("_", " "))


def separation(model: Model, split: Split) -> dict[str, float]:
    """Return the similarities of a new view of each training image to its own row and to the nearest other rows in the bank.

    If the run has no memory bank, the projector's output on all training images replaces it (Wang & Liu, Sec. 5.2).
    """
    train = split.train
    rows = model.bank if model.bank is not None else features(model.project, model.reader(train).plain())
    # Epochs are numbered from 0, so no view from this epoch was used in training.
    new_views = random_views(model, train, epoch=model.run.epochs, batch=model.views.evaluation_batch(model.device))
    z = unit(features(model.project, new_views))
    return separation_values(local_separation(z, unit(rows), nearest=min(_NEAREST, len(rows) - 1)))


def prototype_bias(model: Model, split: Split) -> dict[str, float]:
    """Return the bias of Lee's Eq. 51 and its standard error, over training images whose class has at least two images."""
    train = split.train
    if train.labels is None:
        raise ValueError(f"{model.run.data} has no labels, and the prototype bias compares images of one class")
    partner = partners(train.labels)
    paired = (partner >= 0).nonzero()[:, 0]
    # Images at equal positions in the two data sets get the same augmentation, as Eq. 51 requires.
    batch = model.views.evaluation_batch(model.device)
    anchors, others = (
        random_views(model, train.subset(index), epoch=model.run.epochs, batch=batch)
        for index in (paired, partner[paired])
    )
    with torch.no_grad():
        deviations = [
            prototype_deviations(unit(model.project(x)), unit(model.project(y)))
            for x, y in zip(anchors, others, strict=True)
        ]
    return bias_values(torch.cat(deviations))
