"""Measures on a run's model before training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from contrapose.lab.studies.measures.measure import Context, Evaluation, Words
from contrapose.lab.training import Run
from contrapose.lab.training.initial_model import start

BEFORE = "before training: "


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
