"""Two towers: an encoder of images and one of texts, each with a projector into one space (CLIP, LiT)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from contrapose.distributed import gather
from contrapose.embeddings import Embeddings, between_towers
from contrapose.lab.frameworks.framework import Framework, FrameworkRow, Parts
from contrapose.lab.modalities import CaptionSettings
from contrapose.lab.networks.tower import Tower, encoder_of, projector_of


class TwoTowers(Framework):
    """Each side is compared with the other side of all samples, in both directions.

    towers   by the kind of input, in the order of the views
    frozen   name of a tower whose encoder keeps the weights that it starts with (LiT); its projector is trained
    """

    encoder: nn.ModuleDict
    projector: nn.ModuleDict

    def __init__(self, towers: Mapping[str, Tower], *, frozen: str = "", has_score: bool = False) -> None:
        super().__init__(encoder_of(towers), projector_of(towers), has_score=has_score)
        self.frozen = frozen
        if frozen:
            self.encoder[frozen].requires_grad_(False)

    def train(self, mode: bool = True) -> TwoTowers:
        """Set the mode of all networks, but for a frozen encoder: its batch norms keep their statistics."""
        super().train(mode)
        if self.frozen:
            self.encoder[self.frozen].eval()
        return self

    def forward(self, views: list[Tensor], index: Tensor) -> Embeddings:
        """Compare images (1, B, …) with texts (1, B, …)."""
        return self.compare(self.embed(views), index)

    def embed(self, views: list[Tensor]) -> Tensor:
        """Return (2, B, d): each side through its own tower."""
        return torch.stack([self._embed_side(name, view[0]) for name, view in zip(self.encoder, views, strict=True)])

    def _embed_side(self, name: str, inputs: Tensor) -> Tensor:
        # Without a graph of a frozen encoder, which would be kept for nothing.
        with torch.set_grad_enabled(torch.is_grad_enabled() and name != self.frozen):
            features = self.encoder[name](inputs)
        embedded: Tensor = self.projector[name](features)
        return embedded

    def compare(self, z: Tensor, index: Tensor) -> Embeddings:
        """Compare both sides (2, B, d) with each other, and with those of other processes."""
        z, score = self.split_score(gather(z, 1))
        return Embeddings(z=z, score=score, ids=gather(index), compare=between_towers)


def _build(parts: Parts, settings: CaptionSettings) -> TwoTowers:
    return TwoTowers(parts.towers, frozen=settings.frozen_tower, has_score=parts.has_score)


def _check(run: Any) -> None:
    """Refuse another number of views than one of each side, and a loss that needs a certainty of each view."""
    if run.needs_score:
        raise ValueError(
            f"loss: {run.loss} needs one more output of a projector, and two_towers has two; choose another loss"
        )
    if run.view_count != 2:
        raise ValueError(f"view_count: two_towers has one view of each image and one caption, got {run.view_count}")
    if "+local" in run.views:
        raise ValueError(
            f"views: two_towers has one view of each image, and no local crops; use --views {run.views.split('+')[0]}, got "
            f"{run.views!r}"
        )


def _other_samples(run: Any, views: int) -> int:
    """Negatives of an image: the captions of the other samples; of a caption: the other images."""
    return int(run.contrast_size) - 1


ROWS = (
    FrameworkRow(
        name="two_towers",
        summary="two encoders, of images and of their captions, in one space (CLIP)",
        settings=CaptionSettings,
        build=_build,
        negatives=_other_samples,
        check=_check,
        supports_grad_cache=True,
        tower_count=2,
    ),
)
