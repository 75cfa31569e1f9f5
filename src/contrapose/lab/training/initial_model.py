"""A run's model before training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from contrapose.lab.modalities import Source, Split
from contrapose.lab.networks.norms import estimate_statistics
from contrapose.lab.training.build import build
from contrapose.lab.training.model import Model
from contrapose.lab.training.run import Run
from contrapose.lab.training.sources import find_file
from contrapose.randomness import permutation

_STATISTICS_IMAGES = 4096  # images from which the batch-norm statistics of an untrained network are estimated


def random_views(model: Model, source: Source, *, epoch: int, batch: int, tower: int = 0) -> Iterator[Tensor]:
    """Yield one random view (B, …) per sample for one tower, in order, as training would draw it; files are streamed."""
    run = model.run
    views = run.kind.views(run.views, 1, size=run.size)
    reader = source.reader(views, model.device, workers=model.reader.workers, timeout=model.reader.timeout)
    batches = [list(range(first, min(first + batch, len(source)))) for first in range(0, len(source), batch)]
    for parts in reader.train(batches, seed=run.seed, epoch=epoch):
        yield parts[tower][0]


def start(model: Model, split: Split, *, untrained: bool = False) -> Model:
    """Return the model before training, with batch-norm statistics estimated from training images.

    The model has the weights from the run's `init` file, if there is one, unless `untrained` is set.
    """
    initial = _build(replace(model.run, init="") if untrained else model.run, model, len(split.train))
    run = initial.run
    images = max(1, _STATISTICS_IMAGES // run.batch) * run.batch
    sample = split.train.subset(permutation(len(split.train), run.seed)[:images])
    for number, tower in enumerate(initial.towers.values()):
        drawn = random_views(initial, sample, epoch=0, batch=run.batch, tower=number)
        batches = (x for x in drawn if len(x) == run.batch)
        if run.init:  # weights from a file come with their own batch-norm statistics
            initial.eval()
            estimate_statistics(tower.projector, (tower.encoder(x) for x in batches))
        else:
            estimate_statistics(nn.Sequential(tower.encoder, tower.projector), batches)
    return initial.eval()


def start_without_data(model: Model) -> Model:
    """Return the model before training, of networks without batch norm, whose statistics would need training data."""
    # The number of samples is the size of a memory bank, which is drawn after the networks.
    return _build(model.run, model, samples=1, folder=model.folder).eval()


def _build(run: Run, model: Model, samples: int, *, folder: Path | None = None) -> Model:
    """Return a model with a run's initial weights on the device of `model`."""
    # Building from the same seed reproduces the initial weights, so they need not be saved.
    run = replace(run, init=find_file(run.init, model.folder)) if model.folder else run
    network = build(run, samples).to(model.device)
    initial = Model(run, network.encoder, network.projector, model.device, folder=folder)
    run.kind.prepare(initial)
    return initial


def initial_name(model: Model) -> str:
    """Return what the encoder is called before training; "untrained" would be wrong for weights from a file or a package."""
    pretrained = model.run.init or model.kind.is_pretrained(model.run.encoder)
    return "encoder before training" if pretrained else "untrained encoder"
