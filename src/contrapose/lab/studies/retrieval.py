"""Retrieval of the held-out pairs of a run: each pair's answer, and references without training."""

from __future__ import annotations

from typing import Any

from contrapose.lab.modalities import Split
from contrapose.lab.modalities.source import Retrieval
from contrapose.lab.studies.embeddings import start
from contrapose.lab.training import Model
from contrapose.metrics.retrieval import recall_at, wrong_before


def recall_hits(model: Model, split: Split) -> dict[str, Any]:
    """Return a digit for each held-out pair: 1 if its second text is the one nearest to its first, else 0."""
    pairs = _held_out(model, split)
    wrong = wrong_before(model.features(pairs.queries), model.features(pairs.documents), ids=pairs.ids)
    return {"recall_hits": "".join(str(int(right)) for right in (wrong == 0).tolist())}


def recall_references(model: Model, split: Split) -> dict[str, Any]:
    """Return recall@1 of bags of words, of the encoder before training and, if there is any, of that of --init."""
    pairs = _held_out(model, split)
    words = recall_at(*model.kind.count_words(pairs.queries, pairs.documents), ks=(1,), ids=pairs.ids)
    encoders = {"untrained": start(model, split, untrained=True)}
    encoders |= {"init": start(model, split)} if model.run.init else {}
    scores = {name: encoder.evaluate(split)["recall@1"] for name, encoder in encoders.items()}
    return {"references": {"words": words["recall@1"], **scores}}


def _held_out(model: Model, split: Split) -> Retrieval:
    if split.retrieval is None:
        raise ValueError(f"{model.run.data} has no held-out pairs to score with")
    return split.retrieval
