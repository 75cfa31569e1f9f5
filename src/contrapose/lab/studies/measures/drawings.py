"""Data for figures about a run: a map of a sample of images, and histograms of similarities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from contrapose.lab.evaluation import Measures
from contrapose.lab.modalities import Split
from contrapose.lab.report.embedding import project_to_plane
from contrapose.lab.studies.measures.measure import Context, Evaluation, Words
from contrapose.lab.training import Model
from contrapose.lab.training.initial_model import start
from contrapose.metrics import similarity_histograms


@dataclass(frozen=True)
class Map(Evaluation):
    """A t-SNE map of a sample of test images, with their classes."""

    kind = "map"
    summary = Words("t-SNE of the projector's output on 1,000 test images")
    is_number = False

    def evaluate(self, context: Context) -> dict[str, Any]:
        """Return points in the plane and their classes."""
        z, labels, _ = context.model.sample_embeddings(context.split.held_out, 1000)
        if labels is None:
            raise ValueError(f"{context.model.run.data} has no labels to colour a map by")
        # Rounded, because the points are stored as JSON and used only for drawing.
        points = [[round(x, 2) for x in p] for p in project_to_plane(z.cpu(), "tsne", 0).tolist()]
        return {self.key: {"points": points, "labels": labels.tolist()}}


@dataclass(frozen=True)
class Histograms(Evaluation):
    """Similarities of positives, false and true negatives, before and after training."""

    kind = "histograms"
    summary = Words(
        "similarities of two views, of one class and of two classes, before and after training, of the projector's "
        "output on 2,000 test images"
    )
    is_number = False

    def evaluate(self, context: Context) -> dict[str, Any]:
        """Return histograms for the initial and for the trained encoder."""
        model, split = context.model, context.split
        return {self.key: {"start": _similarities(start(model, split), split), "end": _similarities(model, split)}}


def _similarities(model: Model, split: Split) -> dict[str, Any]:
    """Return histograms of the similarities of positive and negative pairs in a sample of 2,000 images."""
    measures = Measures(2000)
    sample = measures.sample(split.held_out, model.views)
    raw = sample.reader(model.views, model.device, workers=0, timeout=0.0).resident
    assert raw is not None
    model.eval()
    first, second = measures.draw(model.project, model.views, raw, torch.arange(len(sample)), 0, 1)
    labels = None if sample.labels is None else sample.labels.to(first.device)
    histograms = similarity_histograms(first, second, labels)
    counts = {kind: getattr(histograms, kind).tolist() for kind in ("true_positive", "false_negative", "true_negative")}
    return {"edges": histograms.edges.tolist(), "means": list(histograms.means), **counts}
