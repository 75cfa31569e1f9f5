"""Hard negatives of labelled images: the most similar images of other classes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from contrapose.lab.counts import count_of
from contrapose.lab.modalities.input_files import as_text
from contrapose.lab.modalities.mining import MiningTask
from contrapose.lab.modalities.source import Source
from contrapose.pairs import unit

_BLOCK = 2**24  # similarities held at a time
_NONE = -1


def check_labelled(source: Source) -> None:
    """Refuse images without classes."""
    if source.labels is None:
        raise ValueError(
            f"data: expected images with classes, but {source.name} has none; an image's negatives are images of other classes"
        )


def mine_labelled(source: Source, features: Tensor, notes: Sequence[str]) -> MiningTask:
    """Return the task of labelled images: each image's own document is the most similar other image of its class."""
    labels = source.labels
    assert labels is not None
    names = [as_text(str(path)) for path in source.paths] or [str(number) for number in range(len(source))]
    positive = nearest_of_class(features, labels.to(features.device)).tolist()
    queries = [number for number, row in enumerate(positive) if row != _NONE]
    if len(queries) < len(source):
        alone = count_of(len(source) - len(queries), "image")
        notes = [*notes, f"left out, since no other image of {source.name} has their class: {alone}"]
    if not queries:
        raise ValueError(f"data: expected a class with at least two images, but {source.name} has none")
    return MiningTask(
        queries=[names[number] for number in queries],
        documents=names,
        query_embeddings=features[queries],
        document_embeddings=features,
        positives=[[positive[number]] for number in queries],
        excluded=[[number] for number in queries],
        labels=labels,
        nouns=("images", "images"),
        notes=tuple(notes),
    )


@torch.no_grad()
def nearest_of_class(z: Tensor, labels: Tensor) -> Tensor:
    """Return the row of the most similar other embedding with the same label, (n,); -1 for the only one of its class."""
    z, nearest = unit(z), torch.full((len(z),), _NONE, device=z.device)
    for label in labels.unique():
        rows = (labels == label).nonzero()[:, 0]
        if len(rows) == 1:
            continue
        places = torch.arange(len(rows), device=z.device)
        for block in places.split(max(1, _BLOCK // len(rows))):
            similarity = z[rows[block]] @ z[rows].T
            similarity[places[: len(block)], block] = -torch.inf
            nearest[rows[block]] = rows[similarity.argmax(1)]
    return nearest
