"""SimCLR, in which every view in a batch is an anchor, and SimCSE, in which only the first view is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from contrapose.embeddings import Embeddings, first_to_second, within_batch
from contrapose.lab.frameworks.framework import (
    Framework,
    FrameworkRow,
    NormViewsSettings,
    Parts,
    RingSettings,
    check_ring,
    other_views_of_batch,
)
from contrapose.lab.networks.encoder import Encoder
from contrapose.lab.settings import Rule, setting
from contrapose.pairs.similarity import SIMILARITIES


@dataclass(frozen=True, kw_only=True)
class SimCLRSettings(NormViewsSettings, RingSettings):
    """The settings of SimCLR."""

    similarity: str = setting("cosine", Rule(choices=SIMILARITIES))
    """Similarity of two embeddings: cosine; or, without normalising the embeddings, dot (dot product) or neg_euclid (negative
    squared Euclidean distance), as in Lee's Table 1."""


class SimCLR(Framework):
    """SimCLR: one network for all views, with negatives from all processes.

    similarity   one of `SIMILARITIES`
    ring         whether embeddings travel between processes, instead of being gathered
    """

    def __init__(
        self,
        encoder: Encoder,
        projector: nn.Module,
        *,
        similarity: str = "cosine",
        ring: bool = False,
        has_score: bool = False,
    ) -> None:
        super().__init__(encoder, projector, has_score=has_score)
        self.similarity, self.ring = similarity, ring

    def forward(self, views: list[Tensor], index: Tensor) -> Embeddings:
        """Compare all views with each other."""
        return self.compare(self.embed(views), index)

    def compare(self, z: Tensor, index: Tensor) -> Embeddings:
        """Compare all views (V, B, d) with each other and with the other processes' views."""
        return self.compared(z, index, partial(within_batch, similarity=self.similarity), ring=self.ring)


class SimCSE(SimCLR):
    """SimCSE: first views are anchors, compared with all samples' second views; further views are negatives of all anchors."""

    def compare(self, z: Tensor, index: Tensor) -> Embeddings:
        """Compare the first views in `z` (V, B, d) with the other views, including those of other processes."""
        return replace(super().compare(z, index), compare=first_to_second)


def _build_simcse(parts: Parts, settings: RingSettings) -> SimCSE:
    return SimCSE(parts.tower.encoder, parts.tower.projector, ring=settings.ring, has_score=parts.has_score)


def _check_simcse(run: Any) -> None:
    """Raise ValueError for more than two views of a sample: they would be negatives of their own sample.

    Further columns of texts are allowed, because they are meant as negatives.
    """
    check_ring(run)
    if run.view_count > 2 and run.views not in ("columns", "auto"):
        raise ValueError(
            f"view_count: simcse compares two views, got {run.view_count}; use --framework simclr for more views of a sample"
        )


def _second_and_further_views(run: Any, views: int) -> int:
    """Return the number of negatives of a first view: the other samples' second views, and all further views."""
    return int(run.contrast_size) - 1 + (views - 2) * int(run.contrast_size)


def _build(parts: Parts, settings: SimCLRSettings) -> SimCLR:
    tower = parts.tower
    return SimCLR(
        tower.encoder,
        tower.projector,
        similarity=settings.similarity,
        ring=settings.ring,
        has_score=parts.has_score,
    )


_REDUNDANCY = {"head": "barlow-twins-cifar"}
_ZERO_CL = {"head": "zero-cl"}

ROWS = (
    FrameworkRow(
        name="simclr",
        summary="the batch itself, in any number of views",
        settings=SimCLRSettings,
        build=_build,
        check=check_ring,
        negatives=other_views_of_batch,
        supports_grad_cache=True,
        offers=("pairs", "embeddings"),
        losses={
            "barlow_twins": _REDUNDANCY,
            "vicreg": _REDUNDANCY,
            "w_mse": {"head": "w-mse"},
            "zero_cl": _ZERO_CL,
            "zero_fcl": _ZERO_CL,
            "zero_icl": _ZERO_CL,
            "arb": {**_ZERO_CL, "width": 256},
        },
    ),
    FrameworkRow(
        name="simcse",
        summary="the first view with the second one of all samples (SimCSE)",
        settings=RingSettings,
        build=_build_simcse,
        negatives=_second_and_further_views,
        check=_check_simcse,
        supports_grad_cache=True,
    ),
)
