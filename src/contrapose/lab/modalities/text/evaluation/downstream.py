"""STS and SentEval after training, on the user's files or on small sets generated from a run's own texts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from contrapose.lab.modalities.evaluations import DownstreamData, SampleEmbedder
from contrapose.lab.modalities.source import Split
from contrapose.lab.modalities.text.evaluation.recorded import embed_once
from contrapose.lab.modalities.text.evaluation.sts import evaluate_sts, read_sts
from contrapose.lab.modalities.text.evaluation.synthetic import (
    TRIAL_CLASSIFIER,
    TRIAL_TEXTS,
    synthetic_pairs,
    synthetic_tasks,
)
from contrapose.lab.modalities.text.evaluation.transfer import evaluate_transfer, read_transfer
from contrapose.lab.modalities.text.sentences import Sentences


def sts(towers: Mapping[str, SampleEmbedder], data: DownstreamData) -> dict[str, float]:
    """Return the scores from `evaluate_sts` on a file of scored pairs."""
    pairs = read_sts(Path(data.path)) if data.path else synthetic_pairs(_texts(data.split))
    return evaluate_sts(partial(embed_once, towers["text"]), pairs)


def senteval(towers: Mapping[str, SampleEmbedder], data: DownstreamData) -> dict[str, float]:
    """Return the scores from `evaluate_transfer` on a file of classification tasks."""
    tasks = read_transfer(Path(data.path)) if data.path else synthetic_tasks(_texts(data.split))
    return evaluate_transfer(
        partial(embed_once, towers["text"]),
        tasks,
        classifier=None if data.path else TRIAL_CLASSIFIER,
        device=data.device,
        seed=data.seed,
    )


def _texts(split: Split) -> list[str]:
    assert isinstance(split.train, Sentences)
    return split.train.subset(range(min(len(split.train), TRIAL_TEXTS))).texts()
