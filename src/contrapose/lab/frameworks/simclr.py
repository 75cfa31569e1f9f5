"""SimCLR, where every view of a batch is an anchor, and SimCSE, where the first one is: other samples are negatives."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from contrapose.distributed import gather
from contrapose.embeddings import Embeddings, first_to_second, within_batch
from contrapose.lab.frameworks.framework import Framework, FrameworkRow, Parts, other_views_of_batch
from contrapose.lab.networks.encoder import Encoder


class SimCLR(Framework):
    """One network for all views; with several processes, the negatives of all of them. `similarity` is that of `views`."""

    def __init__(
        self, encoder: Encoder, projector: nn.Module, *, similarity: str = "cosine", has_score: bool = False
    ) -> None:
        super().__init__(encoder, projector, has_score=has_score)
        self.similarity = similarity

    def forward(self, views: list[Tensor], index: Tensor) -> Embeddings:
        """Compare all views with each other."""
        return self.compare(self.embed(views), index)

    def compare(self, z: Tensor, index: Tensor) -> Embeddings:
        """Compare all views (V, B, d) with each other, and with those of other processes."""
        z, score = self.split_score(gather(z, 1))
        compare = partial(within_batch, similarity=self.similarity)
        return Embeddings(z=z, score=score, ids=gather(index), compare=compare)


class SimCSE(SimCLR):
    """Anchors are the first views, compared with the second ones of all samples; further views are negatives of all."""

    def compare(self, z: Tensor, index: Tensor) -> Embeddings:
        """Compare the first view with the others (V, B, d), and with those of other processes."""
        return replace(super().compare(z, index), compare=first_to_second)


def _build_simcse(parts: Parts, run: Any) -> SimCSE:
    return SimCSE(parts.tower.encoder, parts.tower.projector, has_score=parts.has_score)


def _check_two_views(run: Any) -> None:
    """Refuse further views of a sample: they would be its own negatives. Further columns of texts are meant as negatives."""
    if run.view_count > 2 and run.views not in ("columns", "auto"):
        raise ValueError(
            f"view_count: simcse compares two views, got {run.view_count}; use --framework simclr for more views of a sample"
        )


def _second_and_further_views(run: Any, views: int) -> int:
    """Negatives of a first view: the second ones of the other samples, and all further views."""
    return int(run.contrast_size) - 1 + (views - 2) * int(run.contrast_size)


def _build(parts: Parts, run: Any) -> SimCLR:
    tower = parts.tower
    return SimCLR(tower.encoder, tower.projector, similarity=run.similarity, has_score=parts.has_score)


ROWS = (
    FrameworkRow(
        name="simclr",
        build=_build,
        negatives=other_views_of_batch,
        own_settings=("similarity",),
        contrasts_whole=True,
        offers=("pairs", "embeddings"),
    ),
    FrameworkRow(
        name="simcse",
        build=_build_simcse,
        negatives=_second_and_further_views,
        check=_check_two_views,
        contrasts_whole=True,
    ),
)
