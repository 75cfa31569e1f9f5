"""Retrieval of a run's held-out pairs: whether each pair is found, and reference scores without training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from contrapose.lab.modalities import Split
from contrapose.lab.modalities.source import Retrieval
from contrapose.lab.studies.measures.initial_model import start
from contrapose.lab.studies.measures.measure import Context, Evaluation, Words
from contrapose.lab.training import Model
from contrapose.metrics.retrieval import recall_at, wrong_before


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


def recall_references(model: Model, split: Split) -> dict[str, float]:
    """Return recall@1 of bags of words, of the untrained encoder and, if --init is given, of the encoder in that file."""
    pairs = _held_out(model, split)
    words = recall_at(*model.kind.count_words(pairs.queries, pairs.documents), ks=(1,), ids=pairs.ids)
    encoders = {"untrained": start(model, split, untrained=True)}
    encoders |= {"init": start(model, split)} if model.run.init else {}
    scores = {name: encoder.evaluate(split)["recall@1"] for name, encoder in encoders.items()}
    return {"words": words["recall@1"], **scores}


def _held_out(model: Model, split: Split) -> Retrieval:
    if split.retrieval is None:
        raise ValueError(f"{model.run.data} has no held-out pairs to score with")
    return split.retrieval
