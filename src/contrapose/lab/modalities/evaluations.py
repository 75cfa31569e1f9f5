"""Evaluations that only one modality offers: for several towers together, during training, and on other data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from contrapose.lab.modalities.source import Source, Split


class SampleEmbedder(Protocol):
    """A tower of a trained run: it embeds samples, or a whole data set, of one kind of input."""

    def embed(self, samples: Sequence[Any]) -> Tensor:
        """Embed a list of samples, such as texts or files: (n, d)."""

    def features(self, source: Source) -> Tensor:
        """Embed a data set: (N, d)."""


class JointEvaluation(Protocol):
    """Scores of several towers that embed their inputs into one space."""

    def scores(self, towers: Mapping[str, SampleEmbedder], split: Split) -> dict[str, float]:
        """Return the scores on the held-out samples; empty if no samples are held out."""

    def chance(self, split: Split) -> dict[str, float]:
        """Return the scores of random answers, with the same keys; empty if no samples are held out."""

    def metrics(self, towers: Mapping[str, SampleEmbedder], source: Source) -> dict[str, float]:
        """Return the geometry of the embeddings of a data set."""

    def arrays(self, towers: Mapping[str, SampleEmbedder], source: Source) -> dict[str, Tensor | Sequence[str]]:
        """Return the embeddings of a data set, keyed by name: `features` of the first tower, and what belongs to them."""

    def map(self, towers: Mapping[str, SampleEmbedder], source: Source) -> tuple[Tensor, tuple[str, ...]]:
        """Return each sample's embedding by each tower (T · n, d), those of the first tower first; and what each tower embeds."""

    def hits(self, towers: Mapping[str, SampleEmbedder], split: Split) -> Sequence[Tensor]:
        """Return for each held-out sample whether its queries find it, bool (queries,)."""

    score: str
    """The name, in `scores`, of the percentage of `hits`."""


class RecordedEvaluation(Protocol):
    """A measure in `Run.extra_metrics` that only one modality offers, written NAME:ARGUMENT@EPOCHS."""

    @property
    def argument(self) -> str:
        """The placeholder for the argument in messages, such as FILE."""

    def check(self, argument: str) -> None:
        """Before the first epoch, refuse an argument that cannot be used, such as a missing file."""

    def score(self, argument: str) -> str:
        """Return the name, in the records, of the value by which losses are compared."""

    def __call__(self, embedder: SampleEmbedder, argument: str) -> dict[str, float]:
        """Return the values for the current weights, keyed by their names in the records."""

    @property
    def baseline_name(self) -> str:
        """What `baseline` measures, in messages."""

    def baseline(self, argument: str) -> dict[str, float]:
        """Return values without training, keyed by the names of the values to compare them with; empty if there are none."""


@dataclass(frozen=True)
class DownstreamData:
    """Data on which a trained run is evaluated."""

    name: str  # name of the data set, as in the measure
    path: str  # path, or name of another data set; empty: a small set is generated for the evaluation
    split: Split  # the data that the run was trained on
    class_names: str = ""  # a file with class names; empty: the data set's own class names
    root: Path | None = None  # directory of downloads
    device: torch.device | None = None  # device for classifiers
    seed: int = 0


class DownstreamEvaluation(Protocol):
    """An evaluation of trained towers on other data that only one modality offers."""

    def __call__(self, towers: Mapping[str, SampleEmbedder], data: DownstreamData) -> dict[str, float]:
        """Return the scores, keyed by name."""
