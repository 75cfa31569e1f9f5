"""Two towers: an image encoder and a text encoder, each with a projector into a shared space (CLIP, LiT)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from contrapose.embeddings import Embeddings, between_towers
from contrapose.lab.frameworks.framework import Framework, FrameworkRow, Parts, RingSettings, check_ring
from contrapose.lab.modalities import CaptionSettings
from contrapose.lab.networks.tower import Tower, encoder_of, projector_of


class TwoTowers(Framework):
    """Each image is compared with the texts of all samples, and each text with the images of all samples.

    towers   towers keyed by their kind of input, in the order of the views
    frozen   name of a tower whose encoder keeps its initial weights (LiT); its projector is still trained
    ring     whether embeddings travel between processes, instead of being gathered
    """

    encoder: nn.ModuleDict
    projector: nn.ModuleDict

    def __init__(
        self, towers: Mapping[str, Tower], *, frozen: str = "", ring: bool = False, has_score: bool = False
    ) -> None:
        super().__init__(encoder_of(towers), projector_of(towers), has_score=has_score)
        self.frozen, self.ring = frozen, ring
        if frozen:
            self.encoder[frozen].requires_grad_(False)

    def train(self, mode: bool = True) -> TwoTowers:
        """Set the mode of all networks except a frozen encoder, whose batch norms keep their running statistics."""
        super().train(mode)
        if self.frozen:
            self.encoder[self.frozen].eval()
        return self

    def forward(self, views: list[Tensor], index: Tensor) -> Embeddings:
        """Compare images (1, B, …) with texts (1, B, …)."""
        return self.compare(self.embed(views), index)

    def embed(self, views: list[Tensor]) -> Tensor:
        """Return (2, B, d): the embeddings of the two inputs, each from its own tower."""
        return torch.stack([self._embed_side(name, view[0]) for name, view in zip(self.encoder, views, strict=True)])

    def _embed_side(self, name: str, inputs: Tensor) -> Tensor:
        # A frozen encoder needs no autograd graph, which would only take memory.
        with torch.set_grad_enabled(torch.is_grad_enabled() and name != self.frozen):
            features = self.encoder[name](inputs)
        embedded: Tensor = self.projector[name](features)
        return embedded

    def compare(self, z: Tensor, index: Tensor) -> Embeddings:
        """Compare the two towers' embeddings (2, B, d) with each other, including those from other processes."""
        return self.compared(z, index, between_towers, ring=self.ring)


@dataclass(frozen=True, kw_only=True)
class TwoTowersSettings(CaptionSettings, RingSettings):
    """The settings of two towers."""


def _build(parts: Parts, settings: TwoTowersSettings) -> TwoTowers:
    return TwoTowers(parts.towers, frozen=settings.frozen_tower, ring=settings.ring, has_score=parts.has_score)


def _check(run: Any) -> None:
    """Raise ValueError unless there is one view per tower, or if the loss needs a certainty for each view."""
    check_ring(run)
    if run.needs_score:
        raise ValueError(
            f"loss: {run.loss} needs an extra output from one projector, but two_towers has two projectors; choose another loss"
        )
    if run.view_count != 2:
        raise ValueError(f"view_count: two_towers needs 2, one view of the image and one caption, got {run.view_count}")
    if "+local" in run.views:
        raise ValueError(
            f"views: two_towers takes one view per image, without local crops; use --views {run.views.split('+')[0]}, got "
            f"{run.views!r}"
        )


def _other_samples(run: Any, views: int) -> int:
    """Return the number of negatives: the other samples' captions for an image, the other images for a caption."""
    return int(run.contrast_size) - 1


ROWS = (
    FrameworkRow(
        name="two_towers",
        summary="two encoders, of images and of their captions, in one space (CLIP)",
        settings=TwoTowersSettings,
        build=_build,
        negatives=_other_samples,
        check=_check,
        supports_grad_cache=True,
        tower_count=2,
    ),
)
