"""Metrics of a run's outputs on all of its images, as the papers measure them, and the run before its training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from contrapose.lab.evaluation import GEOMETRY, Measures, bias_values, features, partners, separation_values
from contrapose.lab.modalities import Source, Split
from contrapose.lab.networks.norms import estimate_statistics
from contrapose.lab.training import Model, build
from contrapose.metrics import local_separation, prototype_deviations
from contrapose.pairs import unit
from contrapose.randomness import permutation

_NEAREST = 10  # neighbours in a local separation
_STATISTICS_IMAGES = 4096  # from which the batch norms of a network before its training are estimated


def metric(model: Model, split: Split, name: str, space: str, images: str) -> dict[str, Any]:
    """Return a metric of an output and the others that come with it, since most of the time goes into embeddings.

    name     a metric of the records
    space    "projector" or "encoder"
    images   "test" or "train": all of them; "bank": new views of all training images against the run's memory bank
    """
    model.eval()
    if images == "bank":
        values = separation(model, split)
    elif images == "train" and name.startswith("prototype_bias_single"):
        values = prototype_bias(model, split)
    else:
        source = split.train if images == "train" else split.held_out
        values = model.measure(source, Measures(images=0, augmented=name not in GEOMETRY), space=space)
    return {f"metric:{metric}:{space}:{images}": value for metric, value in values.items()}


def separation(model: Model, split: Split) -> dict[str, float]:
    """Return the similarity of a new view of each training image to its own and to the nearest other rows of the bank.

    A run without a memory bank is compared with the projector's output of all training images (Wang & Liu, Sec. 5.2).
    """
    train = split.train
    rows = model.bank if model.bank is not None else features(model.project, model.reader(train).plain())
    # Epochs are numbered from 0: no image had a view of this number in the training.
    new_views = random_views(model, train, epoch=model.run.epochs, batch=model.views.evaluation_batch(model.device))
    z = unit(features(model.project, new_views))
    return separation_values(local_separation(z, unit(rows), nearest=min(_NEAREST, len(rows) - 1)))


def prototype_bias(model: Model, split: Split) -> dict[str, float]:
    """Return the bias of Lee's Eq. 51 over all training images that are not alone in their class, and its standard error."""
    train = split.train
    if train.labels is None:
        raise ValueError(f"{model.run.data} has no labels, and the prototype bias compares images of one class")
    partner = partners(train.labels)
    paired = (partner >= 0).nonzero()[:, 0]
    # Equal positions in the two data sets get equal augmentations, as Eq. 51 has it.
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


def random_views(model: Model, source: Source, *, epoch: int, batch: int) -> Iterator[Tensor]:
    """Yield one random view (B, …) of each sample, in order, as the training draws it in this epoch. Files are streamed."""
    run = model.run
    views = run.kind.views(run.views, 1, size=run.size)
    reader = source.reader(views, model.device, workers=model.reader.workers, timeout=model.reader.timeout)
    batches = [list(range(first, min(first + batch, len(source)))) for first in range(0, len(source), batch)]
    for parts in reader.train(batches, seed=run.seed, epoch=epoch):
        yield parts[0][0]


def start(model: Model, split: Split, *, untrained: bool = False) -> Model:
    """Return the model before its training, with batch norms that have the statistics of training images.

    It has the weights of `init`, if the run has any; `untrained` leaves them out.
    """
    # Building from the same seed reproduces the initial weights, so they need not be saved.
    run = replace(model.run, init="") if untrained else model.run
    network = build(run, len(split.train)).to(model.device)
    initial = Model(run, network.encoder, network.projector, model.device)
    run.kind.prepare(initial)
    images = max(1, _STATISTICS_IMAGES // run.batch) * run.batch
    sample = split.train.subset(permutation(len(split.train), run.seed)[:images])
    batches = (x for x in random_views(initial, sample, epoch=0, batch=run.batch) if len(x) == run.batch)
    if run.init:  # an encoder with weights from a file has its own statistics
        initial.eval()
        estimate_statistics(initial.projector, (initial.encoder(x) for x in batches))
    else:
        estimate_statistics(nn.Sequential(initial.encoder, initial.projector), batches)
    return initial.eval()
