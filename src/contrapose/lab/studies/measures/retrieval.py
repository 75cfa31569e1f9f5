"""Retrieval of a run's held-out pairs: whether each pair is found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from contrapose.lab.modalities import Split
from contrapose.lab.modalities.evaluations import JointEvaluation
from contrapose.lab.modalities.source import Retrieval
from contrapose.lab.studies.measures.measure import Context, Evaluation, Words, hits_as_text
from contrapose.lab.training import Model
from contrapose.lab.training.initial_model import start
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
        wrong = wrong_before(queries, documents, ids=pairs.ids, query_ids=pairs.query_ids)
        return {self.key: hits_as_text(wrong == 0)}


@dataclass(frozen=True)
class JointHits(Evaluation):
    """A digit for each held-out query of a run with two towers: 1 if it finds its sample, else 0; a word for each sample."""

    kind = "joint_hits_by_sample"
    summary = Words("which held-out captions find their image")
    is_number = False
    towers = 2

    def evaluate(self, context: Context) -> dict[str, Any]:
        """Return the digits as a text."""
        joint = _joint(context.model)
        by_sample = joint.hits(context.model.towers, context.split)
        return {self.key: " ".join(map(hits_as_text, by_sample))}


@dataclass(frozen=True)
class JointReferences(Evaluation):
    """Scores without training of a run with two towers: of a random ranking, and of the initial encoders."""

    kind = "references"
    summary = Words("scores without training")
    is_number = False
    towers = 2

    def evaluate(self, context: Context) -> dict[str, Any]:
        """Return the scores by chance, of the untrained encoders and, if --init is given, with the encoder in that file."""
        model, split = context.model, context.split
        joint = _joint(model)
        encoders = {"untrained": start(model, split, untrained=True)}
        encoders |= {"init": start(model, split)} if model.run.init else {}
        scores = {name: joint.scores(encoder.towers, split)[joint.score] for name, encoder in encoders.items()}
        return {self.key: {"chance": joint.chance(split)[joint.score], **scores}}


def _joint(model: Model) -> JointEvaluation:
    if model.kind.joint_evaluation is None:
        raise ValueError(f"{model.run.data} is not embedded by two encoders")
    return model.kind.joint_evaluation


def _held_out(model: Model, split: Split) -> Retrieval:
    if split.retrieval is None:
        raise ValueError(f"{model.run.data} has no held-out pairs to score with")
    return split.retrieval
