"""The evaluations in an epoch's record: kNN accuracy, metrics of the outputs, and the measures in `extra_metrics`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from contrapose.lab.evaluation import Measures
from contrapose.lab.modalities import Split
from contrapose.lab.training.model import Model
from contrapose.lab.training.records.extra_metrics import RecordedMeasure, recorded_measures
from contrapose.lab.training.run import Run
from contrapose.lab.training.stops import Diverged
from contrapose.validate import NotFinite


@dataclass(frozen=True, eq=False, kw_only=True)
class EpochEvaluation:
    """Evaluates a run after the epochs (counted from 1) that its settings select."""

    run: Run
    model: Model
    split: Split
    log: Callable[[str], None]

    def due(self, epoch: int) -> tuple[bool, list[RecordedMeasure]]:
        """Return whether the weights after an epoch are evaluated, and which of the `extra_metrics` are due."""
        measures = [
            m
            for m in recorded_measures(self.run.extra_metrics, self.run.kind.recorded)
            if m.is_due(epoch, self.run.epochs)
        ]
        return epoch % self.run.knn_every == 0 or epoch == self.run.epochs, measures

    def scores(self, epoch: int) -> dict[str, float]:
        """Return the kNN accuracy of the encoder's features, if there are labels."""
        try:
            return self.model.evaluate(self.split)
        except NotFinite as error:  # running statistics can diverge before the loss does
            raise Diverged(f"no accuracy after epoch {epoch}: {error}; start over with a lower --lr") from error

    def metrics(self, epoch: int) -> dict[str, float]:
        """Return metrics of the current projector outputs and, as `encoder_NAME`, of the encoder's features."""
        if not self.run.metrics:
            return {}
        source = self.split.train if self.run.metrics_on == "train" else self.split.held_out
        try:
            return self.model.measure_outputs(source, Measures(self.run.metrics))
        except ValueError as error:
            self.log(f"no metrics after epoch {epoch}: {error}")
            return {}

    def take(self, measure: RecordedMeasure, step: int) -> dict[str, float]:
        """Return a measure of the current weights; log a message if it is undefined (STS with equal embeddings)."""
        try:
            return self.model.take(measure, self.split)
        except ValueError as error:
            if not measure.own:
                raise
            self.log(f"no {measure.text.rpartition('@')[0]} after step {step}: {error}")
            return {}
