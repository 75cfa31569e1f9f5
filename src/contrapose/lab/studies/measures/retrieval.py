"""Retrieval of a run's held-out pairs: whether each pair is found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from contrapose.lab.modalities import Split
from contrapose.lab.modalities.source import Retrieval
from contrapose.lab.studies.measures.measure import Context, Evaluation, Words
from contrapose.lab.training import Model
from contrapose.metrics.retrieval import wrong_before


@dataclass(frozen=True)
class RecallHits(Evaluation):
    """A digit for each held-out pair of texts: 1 if its second text is the nearest to its first text, else 0."""

    kind = "recall_hits"
    summary = Words("which held-out pairs are found")
    is_number = False

    def evaluate(self, context: Context) -> dict[str, Any]:
        """Return the digits as a text."""
        pairs = _held_out(context.model, context.split)
        queries, documents = context.model.features(pairs.queries), context.model.features(pairs.documents)
        wrong = wrong_before(queries, documents, ids=pairs.ids)
        return {self.key: "".join(str(int(hit)) for hit in (wrong == 0).tolist())}


def _held_out(model: Model, split: Split) -> Retrieval:
    if split.retrieval is None:
        raise ValueError(f"{model.run.data} has no held-out pairs to score with")
    return split.retrieval
