"""A run's model before training, and measures on that model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from contrapose.lab.modalities import Source, Split
from contrapose.lab.networks.norms import estimate_statistics
from contrapose.lab.studies.measures.measure import Context, Evaluation, Words
from contrapose.lab.training import Model, Run, build
from contrapose.randomness import permutation

BEFORE = "before training: "
_STATISTICS_IMAGES = 4096  # images from which the batch-norm statistics of an untrained network are estimated


@dataclass(frozen=True)
class BeforeTraining(Evaluation):
    """An evaluation that applies another evaluation to the model before training."""

    measure: Evaluation

    @property
    def key(self) -> str:
        """Return start:KEY."""
        return f"start:{self.measure.key}"

    def describe(self, run: Run) -> Words:
        """Describe the other evaluation; the page shortens this text where it also shows the other description."""
        return Words(f"{BEFORE}{self.measure.describe(run).text}")

    def at_smoke_scale(self) -> BeforeTraining:
        """Return this measure with the smoke-scale version of the other evaluation."""
        measure = self.measure.at_smoke_scale()
        assert isinstance(measure, Evaluation)
        return BeforeTraining(measure)

    def evaluate(self, context: Context) -> dict[str, Any]:
        """Return the values of the other evaluation."""
        values = self.measure.evaluate(replace(context, model=start(context.model, context.split)))
        return {f"start:{key}": value for key, value in values.items()}


def random_views(model: Model, source: Source, *, epoch: int, batch: int) -> Iterator[Tensor]:
    """Yield one random view (B, …) per sample, in order, as training would draw it in this epoch; files are streamed."""
    run = model.run
    views = run.kind.views(run.views, 1, size=run.size)
    reader = source.reader(views, model.device, workers=model.reader.workers, timeout=model.reader.timeout)
    batches = [list(range(first, min(first + batch, len(source)))) for first in range(0, len(source), batch)]
    for parts in reader.train(batches, seed=run.seed, epoch=epoch):
        yield parts[0][0]


def start(model: Model, split: Split, *, untrained: bool = False) -> Model:
    """Return the model before training, with batch-norm statistics estimated from training images.

    The model has the weights from the run's `init` file, if there is one, unless `untrained` is set.
    """
    # Building from the same seed reproduces the initial weights, so they need not be saved.
    run = replace(model.run, init="") if untrained else model.run
    network = build(run, len(split.train)).to(model.device)
    initial = Model(run, network.encoder, network.projector, model.device)
    run.kind.prepare(initial)
    images = max(1, _STATISTICS_IMAGES // run.batch) * run.batch
    sample = split.train.subset(permutation(len(split.train), run.seed)[:images])
    batches = (x for x in random_views(initial, sample, epoch=0, batch=run.batch) if len(x) == run.batch)
    if run.init:  # weights from a file come with their own batch-norm statistics
        initial.eval()
        estimate_statistics(initial.projector, (initial.encoder(x) for x in batches))
    else:
        estimate_statistics(nn.Sequential(initial.encoder, initial.projector), batches)
    return initial.eval()
