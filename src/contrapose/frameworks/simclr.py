"""SimCLR: every view of the batch is an anchor, and all the other images are its negatives."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from contrapose.distributed import gather
from contrapose.embeddings import Embeddings, within_batch
from contrapose.frameworks.framework import Framework, FrameworkRow, Parts, other_views_of_batch


class SimCLR(Framework):
    """One network for all views; with several processes, the negatives of all of them."""

    def forward(self, views: list[Tensor], index: Tensor) -> Embeddings:
        """Compare all views with each other."""
        return self.compare(self.embed(views), index)

    def compare(self, z: Tensor, index: Tensor) -> Embeddings:
        """Compare all views (V, B, d) with each other, and with those of other processes."""
        z, score = self.split_score(gather(z, 1))
        return Embeddings(z=z, score=score, ids=gather(index), compare=within_batch)


def _build(parts: Parts, run: Any) -> SimCLR:
    return SimCLR(parts.tower.encoder, parts.tower.projector, has_score=parts.has_score)


ROWS = (FrameworkRow(name="simclr", build=_build, negatives=other_views_of_batch, contrasts_whole=True),)
