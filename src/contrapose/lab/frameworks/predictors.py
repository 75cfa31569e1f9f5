"""Frameworks with a predictor after the projector: MoCo v3, BYOL, SimSiam and NNCLR.

Views pass through the networks one at a time, as in the authors' code, so batch norms use the statistics of a single view.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
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
    QueueSettings,
    check_global_crops,
    global_crops,
    keys_of_batch,
    other_views_of_batch,
    register_queue,
    replace_oldest,
    separate_views,
)
from contrapose.lab.frameworks.momentum import MomentumFramework, ScheduledMomentumSettings
from contrapose.lab.frameworks.protocols import SGD, SMALL_BATCH, TABLE8
from contrapose.lab.networks.encoder import Encoder
from contrapose.lab.networks.heads import predictor
from contrapose.lab.settings import Settings
from contrapose.pairs import unit


@dataclass(frozen=True, kw_only=True)
class PredictorSettings:
    """The settings of frameworks with a predictor."""

    predictor: int = 0
    """Hidden width of the predictor; 0: a quarter of the embedding's width for SimSiam, 4096 for other frameworks."""
    constant_predictor_lr: bool = False
    """Train the predictor at the peak learning rate throughout, as SimSiam does on ImageNet; all other layers follow the
    schedule."""


@dataclass(frozen=True, kw_only=True)
class MomentumPredictorSettings(PredictorSettings, ScheduledMomentumSettings):
    """The settings of MoCo v3 and BYOL."""


@dataclass(frozen=True, kw_only=True)
class NNCLRSettings(PredictorSettings, QueueSettings):
    """The settings of NNCLR."""


class MomentumPredictor(MomentumFramework):
    """MoCo v3 and BYOL: each view's prediction is compared with the momentum encoder's embeddings of the other views.

    MoCo v3 uses the loss `moco_v3`, whose negatives come only from the other views; BYOL uses the loss `byol`, which has no
    negatives. The momentum encoder (BYOL's teacher) sees only the global crops.
    """

    def __init__(
        self,
        encoder: Encoder,
        projector: nn.Module,
        predictor: nn.Module,
        *,
        momentum: float = 0.99,
        momentum_schedule: str = "constant",
        has_score: bool = False,
    ) -> None:
        super().__init__(
            encoder, projector, momentum=momentum, momentum_schedule=momentum_schedule, has_score=has_score
        )
        self.predictor = predictor

    def forward(self, views: list[Tensor], index: Tensor) -> Embeddings:
        """Compare each view's prediction with the other views' keys."""
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
    """SimSiam: each view's prediction is compared with the same network's embeddings of the other views (stop-gradient)."""

    def __init__(
        self, encoder: Encoder, projector: nn.Module, predictor: nn.Module, *, has_score: bool = False
    ) -> None:
        super().__init__(encoder, projector, has_score=has_score)
        self.predictor = predictor

    def forward(self, views: list[Tensor], index: Tensor) -> Embeddings:
        """Compare each view's prediction with the other views' embeddings; local crops are not targets."""
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
        """Compare each view's nearest neighbour with the other views' predictions."""
        projections, predictions, score = project_and_predict(self, self.predictor, separate_views(views))
        return Embeddings(
            z=gather(predictions, 1),
            target=gather(projections.detach(), 1),
            score=None if score is None else gather(score, 1),
            ids=gather(index),
            # A copy, because the backward pass must not see rows that `update` has replaced.
            compare=with_nearest_neighbours(self.rows.clone()),
        )

    @torch.no_grad()
    def update(self, batch: Embeddings, **settings: Any) -> None:
        """Replace the queue's oldest rows with the last view's embeddings."""
        assert batch.target is not None
        replace_oldest(self.rows, self.place, unit(batch.target[-1]))


def project_and_predict(
    framework: Framework, predictor: nn.Module, views: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the projections (V, B, d), the predictions (V, B, d) and the scores (V, B) of all views."""
    projections, score = framework.split_score(framework.embed(views))
    return projections, torch.stack([predictor(z) for z in projections]), score


def _build_momentum_predictor(
    parts: Parts, settings: MomentumPredictorSettings, *, bias: bool = False
) -> MomentumPredictor:
    """Build MoCo v3, or BYOL with `bias`, which gives the predictor's last layer a bias."""
    last_norm = parts.head == "moco-v3-vit"
    return MomentumPredictor(
        parts.tower.encoder,
        parts.tower.projector,
        predictor(parts.tower.width, settings.predictor or 4096, last_norm=last_norm, bias=bias),
        momentum=settings.momentum,
        momentum_schedule=settings.momentum_schedule,
        has_score=parts.has_score,
    )


def _build_simsiam(parts: Parts, settings: PredictorSettings) -> SimSiam:
    width = parts.tower.width
    return SimSiam(
        parts.tower.encoder,
        parts.tower.projector,
        predictor(width, settings.predictor or max(1, width // 4), bias=True),
        has_score=parts.has_score,
    )


def _build_nnclr(parts: Parts, settings: NNCLRSettings) -> NNCLR:
    width = parts.tower.width
    return NNCLR(
        parts.tower.encoder,
        parts.tower.projector,
        predictor(width, settings.predictor or 4096, bias=True),
        width=width,
        size=settings.queue,
        has_score=parts.has_score,
    )


def _nnclr_negatives(run: Any, views: int) -> int:
    # With two views, a view's neighbour is compared only with the other view's predictions.
    return other_views_of_batch(run, 1 if views == 2 else views)


_MOCO_V3 = FrameworkRow(
    name="moco-v3",
    summary="a momentum encoder's keys of the same batch, with a predictor",
    settings=MomentumPredictorSettings,
    build=_build_momentum_predictor,
    negatives=keys_of_batch,
    check=check_global_crops,
    has_target=True,
    losses={"cacr_moco_v3": {"head": "moco-v3"}},
)
_BYOL_PRESETS: dict[str, Settings] = {
    # lightly averages the negative cosines of both directions, which is SimSiam's loss; its gradient is a quarter of BYOL's.
    "cifar": {
        "head": "byol-cifar", "predictor": 1024, "momentum": 0.99, "loss": "simsiam", "views": "byol-cifar"},
    # As in lightly, with the authors' values for 100 epochs: learning rate 0.45 per 256 images, momentum from 0.99 to 1
    "imagenet": {"head": "byol", "momentum": 0.99, "momentum_schedule": "cosine", "loss": "byol", "views": "byol", "lr": 0.45},
    "imagenet100": TABLE8,
}  # fmt: skip
_SIMSIAM_PRESETS: dict[str, Settings] = {
    "cifar": {"head": "simsiam-cifar", "predictor": 512, "loss": "simsiam", "views": "simsiam-cifar"},
    # The authors' settings: learning rate 0.05 per 256 images, no warm-up, constant learning rate for the predictor
    "imagenet": {
        **SGD, "head": "simsiam", "predictor": 512, "constant_predictor_lr": True, "loss": "simsiam", "views": "moco-v2",
        "encoder": "resnet50-zero", "lr": 0.1, "warmup": 0.0, "batch": 512},
    "imagenet100": {"epochs": 200},
}  # fmt: skip
_NNCLR_PRESETS: dict[str, Settings] = {
    # lightly's NT-Xent has a default temperature of 0.5; the paper uses 0.1.
    "cifar": {"head": "nnclr-cifar", "queue": 4096, "loss": "nnclr(temperature=0.5)"},
    # Dwibedi et al.: SimCLR's learning rate of 0.3 per 256 images, with batches of 4,096; views as in lightly's example
    "imagenet": {
        "head": "nnclr", "queue": 98304, "loss": "nnclr(temperature=0.1)", "views": "simclr", "batch": 4096, "lr": 4.8,
        "epochs": 1000},
    "imagenet100": {**SMALL_BATCH, "lr": 0.3, "queue": 65536},
}  # fmt: skip

ROWS = (
    _MOCO_V3,
    replace(
        _MOCO_V3,
        name="byol",
        summary="a teacher's embeddings, which a predictor learns to predict, without negatives",
        build=partial(_build_momentum_predictor, bias=True),
        collapse_remedy="a teacher that changes more slowly (--momentum closer to 1) or a --head with batch norms",
        losses={"byol": {"head": "byol-cifar", "predictor": 1024}},
        presets={"byol": _BYOL_PRESETS},
    ),
    replace(
        _MOCO_V3,
        name="simsiam",
        summary="the same network's embeddings without gradient, which a predictor learns to predict",
        settings=PredictorSettings,
        build=_build_simsiam,
        collapse_remedy="a wider --predictor or a --head with batch norms",
        losses={"simsiam": {"head": "simsiam-cifar", "predictor": 512}},
        presets={"simsiam": _SIMSIAM_PRESETS},
    ),
    FrameworkRow(
        name="nnclr",
        summary="nearest neighbours in a queue in place of one view, with a predictor for the other",
        settings=NNCLRSettings,
        build=_build_nnclr,
        negatives=_nnclr_negatives,
        losses={"nnclr": {"head": "nnclr-cifar"}},
        presets={"nnclr": _NNCLR_PRESETS},
    ),
)
