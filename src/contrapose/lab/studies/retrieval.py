"""Retrieval of the held-out pairs of a run: each pair's answer, and references without training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from contrapose.lab.modalities import Source, Split
from contrapose.lab.modalities.modality import Retrieval
from contrapose.lab.modalities.text.sentences import Sentences
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
    words = recall_at(*_bags_of_words(pairs.queries, pairs.documents), ks=(1,), ids=pairs.ids)
    encoders = {"untrained": start(model, split, untrained=True)}
    encoders |= {"init": start(model, split)} if model.run.init else {}
    scores = {name: encoder.evaluate(split)["recall@1"] for name, encoder in encoders.items()}
    return {"references": {"words": words["recall@1"], **scores}}


def _held_out(model: Model, split: Split) -> Retrieval:
    if split.retrieval is None:
        raise ValueError(f"{model.run.data} has no held-out pairs to score with")
    return split.retrieval


def _bags_of_words(*sources: Source) -> list[Tensor]:
    """Return how often each token is in each text, (N, V), where V counts the tokens that are in any text."""
    tokens = [source.tokens[:, 0] for source in sources if isinstance(source, Sentences)]
    assert isinstance(sources[0], Sentences)
    padding = sources[0].tokenizer.pad_token_id
    vocabulary, rows = torch.unique(torch.cat(tokens), return_inverse=True)
    counts = torch.zeros(len(rows), len(vocabulary)).scatter_add_(1, rows, torch.ones(rows.shape))
    counts[:, vocabulary == padding] = 0
    return list(counts.split([len(part) for part in tokens]))
