"""The memory-bank framework, with one stored embedding per training image."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from contrapose.distributed import gather
from contrapose.embeddings import Embeddings, with_bank
from contrapose.lab.frameworks.framework import Framework, FrameworkRow, NormViewsSettings, Parts
from contrapose.lab.networks.encoder import Encoder
from contrapose.pairs import unit


class MemoryBank(Framework):
    """Wu et al., as Wang & Liu use it: the positive is the image's own row, the negatives are all other rows.

    After each batch, b_n ← normalise(½ b_n + ½ z_n) for the images n in the batch; z is the mean over an image's views.
    """

    rows: Tensor

    def __init__(
        self,
        encoder: Encoder,
        projector: nn.Module,
        *,
        width: int,
        size: int,
        momentum: float = 0.5,
        has_score: bool = False,
    ) -> None:
        super().__init__(encoder, projector, has_score=has_score)
        if not 0 <= momentum <= 1:
            raise ValueError(f"momentum: expected a number from 0 to 1, got {momentum!r}")
        self.momentum = momentum
        # Uniform coordinates, with an expected squared length of 1; a row is normalised when its image is first seen.
        bound = (3 / width) ** 0.5
        self.register_buffer("rows", torch.empty(size, width).uniform_(-bound, bound))

    @property
    def bank(self) -> Tensor:
        """The stored embeddings (N, d). The rows of images that have not been in a batch yet are not normalised."""
        return self.rows

    def forward(self, views: list[Tensor], index: Tensor) -> Embeddings:
        """Compare each view with the bank."""
        z, score = self.split_score(gather(self.embed(views), 1))
        # A copy, because the backward pass must not see rows that `update` has changed.
        return Embeddings(z=z, score=score, ids=gather(index), compare=with_bank(self.rows.clone()))

    @torch.no_grad()
    def update(self, batch: Embeddings, **settings: Any) -> None:
        """Update the stored rows of the images in a batch."""
        index, z = batch.ids, unit(batch.z.detach()).mean(0)
        self.rows[index] = unit(self.momentum * self.rows[index] + (1 - self.momentum) * z.to(self.rows.dtype))


def _build(parts: Parts, settings: NormViewsSettings) -> MemoryBank:
    tower = parts.tower
    return MemoryBank(tower.encoder, tower.projector, width=tower.width, size=parts.samples, has_score=parts.has_score)


ROWS = (
    FrameworkRow(
        name="memory-bank",
        summary="one stored embedding for every training image (Wu et al., Wang & Liu)",
        settings=NormViewsSettings,
        build=_build,
        negatives=lambda run, views: None,
        least_views=1,
    ),
)
