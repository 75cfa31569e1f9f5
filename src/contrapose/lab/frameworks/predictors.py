"""Frameworks with a predictor behind the projector: MoCo v3, BYOL, SimSiam and NNCLR.

Views pass through the networks one at a time, as in the authors' code: batch norms have the statistics of a single view.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from contrapose.distributed import gather
from contrapose.embeddings import Embeddings, with_nearest_neighbours, within_batch
from contrapose.lab.cuda.streams import side_stream
from contrapose.lab.frameworks.framework import (
    Framework,
    FrameworkRow,
    Parts,
    check_global_crops,
    global_crops,
    keys_of_batch,
    other_views_of_batch,
    register_queue,
    replace_oldest,
    separate_views,
)
from contrapose.lab.frameworks.momentum import MomentumFramework
from contrapose.lab.networks.encoder import Encoder
from contrapose.lab.networks.heads import predictor
from contrapose.pairs import unit


@dataclass(frozen=True, kw_only=True)
class PredictorSettings:
    """Settings of a run that belong to these frameworks."""

    predictor: int = 0
    """Hidden width of the predictor; 0: 4096 for MoCo v3, BYOL and NNCLR, a quarter of the embedding for SimSiam."""
    constant_predictor_lr: bool = False
    """Keep the predictor at the peak learning rate, as SimSiam does on ImageNet; all else follows the schedule."""


class MomentumPredictor(MomentumFramework):
    """MoCo v3 and BYOL: each view's prediction is compared with the momentum encoder's embeddings of the other views.

    MoCo v3's loss is `moco_v3`, whose negatives are those of the other views alone; BYOL's is `byol`, which has none. The
    momentum encoder, BYOL's teacher, sees the global crops only.
    """

    def __init__(
        self,
        encoder: Encoder,
        projector: nn.Module,
        predictor: nn.Module,
        *,
        momentum: float = 0.99,
        rising: bool = False,
        has_score: bool = False,
    ) -> None:
        super().__init__(encoder, projector, momentum=momentum, rising=rising, has_score=has_score)
        self.predictor = predictor

    def forward(self, views: list[Tensor], index: Tensor) -> Embeddings:
        """Compare the predictions of every view with the keys of the others."""
        with side_stream(views[0].device) as join:
            keys = self.make_keys(separate_views(global_crops(views)))
        _, predictions, score = project_and_predict(self, self.predictor, separate_views(views))
        join()
        return Embeddings(
            z=gather(predictions, 1),
            target=gather(keys, 1),
            score=None if score is None else gather(score, 1),
            ids=gather(index),
            compare=within_batch,
        )


class SimSiam(Framework):
    """SimSiam: each view's prediction is compared with the same network's embeddings of the other views, without gradient."""

    def __init__(
        self, encoder: Encoder, projector: nn.Module, predictor: nn.Module, *, has_score: bool = False
    ) -> None:
        super().__init__(encoder, projector, has_score=has_score)
        self.predictor = predictor

    def forward(self, views: list[Tensor], index: Tensor) -> Embeddings:
        """Compare the predictions of every view with the embeddings of the others; those of local crops are no target."""
        projections, predictions, score = project_and_predict(self, self.predictor, separate_views(views))
        return Embeddings(
            z=gather(predictions, 1),
            target=gather(projections[: len(views[0])].detach(), 1),
            score=None if score is None else gather(score, 1),
            ids=gather(index),
            compare=within_batch,
        )


class NNCLR(Framework):
    """NNCLR: a view's nearest neighbour in a queue of embeddings is compared with the predictions of the other views.

    The last view's embeddings overwrite the oldest rows of the queue.
    """

    rows: Tensor
    place: Tensor

    def __init__(
        self,
        encoder: Encoder,
        projector: nn.Module,
        predictor: nn.Module,
        *,
        width: int,
        size: int = 4096,
        has_score: bool = False,
    ) -> None:
        super().__init__(encoder, projector, has_score=has_score)
        self.predictor = predictor
        register_queue(self, unit(torch.randn(size, width)))

    def forward(self, views: list[Tensor], index: Tensor) -> Embeddings:
        """Compare each view's nearest neighbour with the predictions of the others."""
        projections, predictions, score = project_and_predict(self, self.predictor, separate_views(views))
        return Embeddings(
            z=gather(predictions, 1),
            target=gather(projections.detach(), 1),
            score=None if score is None else gather(score, 1),
            ids=gather(index),
            # A copy: the backward pass must not see rows that have been replaced.
            compare=with_nearest_neighbours(self.rows.clone()),
        )

    @torch.no_grad()
    def update(self, batch: Embeddings, **settings: Any) -> None:
        """Replace the oldest rows by the last view's embeddings of a batch."""
        assert batch.target is not None
        replace_oldest(self.rows, self.place, unit(batch.target[-1]))


def project_and_predict(
    framework: Framework, predictor: nn.Module, views: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the projections and the predictions of all views, (V, B, d) each, and the scores (V, B)."""
    projections, score = framework.split_score(framework.embed(views))
    return projections, torch.stack([predictor(z) for z in projections]), score


def _build_momentum_predictor(parts: Parts, run: Any) -> MomentumPredictor:
    width = parts.tower.width
    return MomentumPredictor(
        parts.tower.encoder,
        parts.tower.projector,
        # BYOL's last layer has a bias; MoCo v3's has none.
        predictor(width, run.predictor or 4096, last_norm=run.head == "moco-v3-vit", bias=run.framework == "byol"),
        momentum=run.momentum,
        rising=run.rising,
        has_score=parts.has_score,
    )


def _build_simsiam(parts: Parts, run: Any) -> SimSiam:
    width = parts.tower.width
    return SimSiam(
        parts.tower.encoder,
        parts.tower.projector,
        predictor(width, run.predictor or max(1, width // 4), bias=True),
        has_score=parts.has_score,
    )


def _build_nnclr(parts: Parts, run: Any) -> NNCLR:
    width = parts.tower.width
    return NNCLR(
        parts.tower.encoder,
        parts.tower.projector,
        predictor(width, run.predictor or 4096, bias=True),
        width=width,
        size=run.queue,
        has_score=parts.has_score,
    )


def _nnclr_negatives(run: Any, views: int) -> int:
    # Of two views, only the predictions of the other one are compared.
    return other_views_of_batch(run, 1 if views == 2 else views)


_PREDICTOR = ("predictor", "constant_predictor_lr")

_MOCO_V3 = FrameworkRow(
    name="moco-v3",
    build=_build_momentum_predictor,
    negatives=keys_of_batch,
    own_settings=("rising", *_PREDICTOR),
    check=check_global_crops,
    has_target=True,
)

ROWS = (
    _MOCO_V3,
    replace(_MOCO_V3, name="byol"),
    replace(_MOCO_V3, name="simsiam", build=_build_simsiam, own_settings=_PREDICTOR),
    FrameworkRow(name="nnclr", build=_build_nnclr, negatives=_nnclr_negatives, own_settings=_PREDICTOR),
)
