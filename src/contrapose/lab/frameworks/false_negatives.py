"""FNC: negatives are a momentum encoder's keys from this and earlier batches; support views find false negatives among them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from contrapose.distributed import gather
from contrapose.embeddings import Embeddings, with_queue
from contrapose.lab.cuda.streams import side_stream
from contrapose.lab.frameworks.framework import (
    FrameworkRow,
    NormViewsSettings,
    Parts,
    QueueSettings,
    other_views_of_batch,
    register_queue,
    replace_oldest,
)
from contrapose.lab.frameworks.momentum import MomentumFramework, MomentumSettings
from contrapose.lab.frameworks.protocols import SIMCLR_V2, SMALL_BATCH
from contrapose.lab.networks.encoder import Encoder
from contrapose.losses.parse import loss_name
from contrapose.pairs import unit


@dataclass(frozen=True, kw_only=True)
class FNCSettings(NormViewsSettings, MomentumSettings, QueueSettings):
    """The settings of FNC."""

    anchor_views: int = 2
    """The first this many views are anchors and positives; the other views and local crops only help to find false negatives.
    0: all views are anchors, as in the authors' code."""


class FNC(MomentumFramework):
    """FNC (Huynh et al.): each anchor view's query is compared with keys from the other anchor views, other images and a queue.

    The momentum encoder computes keys for all views. All keys serve as support views, by which `fnc` recognises false
    negatives. The anchor views' keys are also positives and candidates, and overwrite the queue's oldest rows after the step.
    """

    rows: Tensor
    place: Tensor

    def __init__(
        self,
        encoder: Encoder,
        projector: nn.Module,
        *,
        width: int,
        size: int = 65536,
        momentum: float = 0.999,
        anchor_views: int = 2,
        has_score: bool = False,
    ) -> None:
        super().__init__(encoder, projector, momentum=momentum, has_score=has_score)
        self.anchor_views = anchor_views
        # Starts with zeros, as in the authors' code: a zero row has a score of 0, which is below any sensible threshold.
        register_queue(self, torch.zeros(size, width))

    def forward(self, views: list[Tensor], index: Tensor) -> Embeddings:
        """Compare the anchor views' queries with the keys of the batch and with the queue."""
        # All anchor views have the same size; local crops come after them, in a separate group.
        anchors = [views[0][: self.anchor_views]] if self.anchor_views else views
        with side_stream(views[0].device) as join:
            keys = self.make_keys(views)
        query, score = self.split_score(gather(self.embed(anchors), 1))
        join()
        keys = gather(keys, 1)
        return Embeddings(
            z=query,
            target=keys[: len(query)],
            support=keys,
            score=score,
            ids=gather(index),
            # A copy: the backward pass must not see rows that have been replaced.
            compare=with_queue(self.rows.clone(), keys=True),
        )

    @torch.no_grad()
    def update(self, batch: Embeddings, **settings: Any) -> None:
        """Replace the queue's oldest rows with a batch's keys of the anchor views."""
        assert batch.target is not None
        replace_oldest(self.rows, self.place, unit(batch.target).flatten(0, 1))


def _build(parts: Parts, settings: FNCSettings) -> FNC:
    return FNC(
        parts.tower.encoder,
        parts.tower.projector,
        width=parts.tower.width,
        size=settings.queue,
        momentum=settings.momentum,
        anchor_views=settings.anchor_views,
        has_score=parts.has_score,
    )


def _negatives(run: Any, views: int) -> int:
    return int(run.queue) + other_views_of_batch(run, run.anchor_views or views)


def _check(run: Any) -> None:
    if loss_name(run.loss) == "align_uniform":
        raise ValueError(
            "loss: align_uniform spreads out queries, but the negatives in fnc are keys; use --framework moco"
        )
    # A single view is allowed to pass here, because the check of `least_views` reports it.
    if run.anchor_views == 1 or run.anchor_views > max(2, run.view_count):
        raise ValueError(
            f"anchor_views: expected 0 for all, or from 2 to the {run.view_count} views of full size (--view-count), "
            f"got {run.anchor_views}"
        )


ROWS = (
    FrameworkRow(
        name="fnc",
        summary="a momentum encoder's keys of the batch and a queue of them, with false negatives among them (FNC)",
        settings=FNCSettings,
        build=_build,
        negatives=_negatives,
        check=_check,
        losses={"fnc": {}, "fnc_elimination": {}},
        presets={
            "fnc": {
                # Our choice: a queue of 16 batches. As in the paper, except for two support views instead of eight
                "cifar": {"head": "simclr", "queue": 2048, "momentum": 0.99, "view_count": 4, "loss": "fnc"},
                # As in the code of Huynh et al.: ten views, all of them anchors, and a memory the size of 16 batches, of
                # which ten are the views of the current batch
                "imagenet": {
                    **SIMCLR_V2, "queue": 6 * 4096, "momentum": 0.999, "view_count": 10, "anchor_views": 0, "loss": "fnc"},
                "imagenet100": {**SMALL_BATCH, "lr": 0.1 * math.sqrt(256), "queue": 6 * 256},
            }
        },
    ),
)  # fmt: skip
