"""Frameworks that assign samples to prototypes: SwAV and DINO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from contrapose.distributed import gather
from contrapose.embeddings import Embeddings, within_batch
from contrapose.lab.cuda.streams import side_stream
from contrapose.lab.frameworks.framework import (
    Framework,
    FrameworkRow,
    NormViewsSettings,
    Parts,
    QueueSettings,
    global_crops,
    replace_oldest,
)
from contrapose.lab.frameworks.momentum import MomentumFramework, ScheduledMomentumSettings
from contrapose.lab.frameworks.protocols import SGD
from contrapose.lab.networks.encoder import Encoder
from contrapose.lab.settings import Rule, Settings, setting
from contrapose.pairs import unit

_CENTER_MOMENTUM = 0.9


@dataclass(frozen=True, kw_only=True)
class PrototypeSettings(NormViewsSettings):
    """The settings of frameworks with prototypes."""

    prototypes: int = setting(0, Rule(small=64))
    """Number of prototypes; 0: 3,000 for SwAV, 65,536 for DINO."""
    frozen_epochs: int = 1
    """Number of epochs at the start during which the prototypes are not trained."""


@dataclass(frozen=True, kw_only=True)
class SwAVSettings(PrototypeSettings, QueueSettings):
    """The settings of SwAV."""

    queue_start: int = 0
    """First epoch (counted from 1) in which the queue's samples are also used to compute codes; 0: no queue."""


@dataclass(frozen=True, kw_only=True)
class DINOSettings(PrototypeSettings, ScheduledMomentumSettings):
    """The settings of DINO."""


class Prototypes(nn.Module):
    """Learned directions (p, d), which are frozen in the first epochs."""

    is_trained: Tensor

    def __init__(self, count: int, width: int, *, frozen_epochs: int) -> None:
        super().__init__()
        if count < 2:
            raise ValueError(f"prototypes: expected at least 2, got {count!r}")
        # Initialised like a linear layer without bias, since the authors' prototypes are such a layer.
        self.weight = nn.Parameter(nn.Linear(width, count, bias=False).weight.detach())
        self.before_step = self.weight.detach()
        self.frozen_epochs = frozen_epochs
        # 0 or 1 as a tensor, because a captured step reads it
        self.register_buffer("is_trained", torch.tensor(float(frozen_epochs == 0)), persistent=False)

    def begin_epoch(self, epoch: int) -> None:
        """Set whether the prototypes are trained in this epoch (counted from 0)."""
        self.is_trained.fill_(float(epoch >= self.frozen_epochs))

    def forward(self) -> Tensor:
        """Return the prototypes (p, d), with a gradient of zero while they are frozen."""
        self.before_step = self.weight.detach().clone()
        return torch.lerp(self.before_step, self.weight, self.is_trained)

    @torch.no_grad()
    def after_step(self) -> None:
        """Undo the optimiser's change to frozen prototypes: weight decay moves them even if their gradient is zero."""
        self.weight.copy_(torch.lerp(self.before_step, self.weight, self.is_trained))


class SwAV(Framework):
    """SwAV: the code of a view, its assignment to prototypes, is predicted from the sample's other views.

    Only global crops have codes. Sinkhorn's algorithm balances the codes over the batch and, from epoch `queue_start` on and once
    the queue is full, over a queue of earlier samples too.
    """

    rows: Tensor
    place: Tensor
    row_count: Tensor
    queue_in_use: Tensor

    def __init__(
        self,
        encoder: Encoder,
        projector: nn.Module,
        *,
        width: int,
        prototypes: int = 3000,
        frozen_epochs: int = 1,
        queue: int = 3840,
        queue_start: int = 0,
    ) -> None:
        super().__init__(encoder, projector)
        self.prototypes = Prototypes(prototypes, width, frozen_epochs=frozen_epochs)
        self.queue_start = queue_start
        # One queue for each of the two global crops; if the queue is not used, it has no rows.
        self.register_buffer("rows", torch.zeros(2, queue if queue_start else 0, width))
        self.register_buffer("place", torch.zeros((), dtype=torch.long))
        self.register_buffer("row_count", torch.zeros((), dtype=torch.long))
        self.register_buffer("queue_in_use", torch.zeros(()), persistent=False)

    def forward(self, views: list[Tensor], index: Tensor) -> Embeddings:
        """Compare all views with the prototypes."""
        return Embeddings(
            z=gather(self.embed(views), 1),
            ids=gather(index),
            prototypes=self.prototypes(),
            # A copy, because the backward pass must not see rows that `update` has replaced.
            stored=self.rows.clone() if self.queue_start else None,
            stored_weight=self.queue_in_use * (self.row_count >= self.rows.shape[1]) if self.queue_start else None,
            global_views=len(views[0]),
            compare=within_batch,
        )

    def begin_epoch(self, epoch: int, *, step: int, steps: int) -> None:
        """Start to train the prototypes, and to use the queue, in the epochs that the settings say."""
        self.prototypes.begin_epoch(epoch)
        self.queue_in_use.fill_(float(0 < self.queue_start <= epoch + 1))

    @torch.no_grad()
    def update(self, batch: Embeddings, **settings: Any) -> None:
        """Replace the oldest rows of the queues with a batch's embeddings of the global crops."""
        if not self.queue_start:
            return
        for rows, fresh in zip(self.rows, unit(batch.z[:2].detach()), strict=True):
            place = self.place.clone()
            replace_oldest(rows, place, fresh)
        self.place.copy_(place)
        self.row_count += batch.z.shape[1]

    @torch.no_grad()
    def after_step(self) -> None:
        """Normalise the prototypes, so that their effective learning rate does not fall as their norms grow."""
        self.prototypes.after_step()
        self.prototypes.weight.copy_(unit(self.prototypes.weight))


class DINO(MomentumFramework):
    """DINO: the student predicts the teacher's assignment of a global crop to prototypes from the sample's other views.

    The teacher is the moving average of encoder, projector and prototypes. `center` is a moving average of the teacher's mean
    scores; it is subtracted from the teacher's scores, so that no prototype gets all samples.
    """

    center: Tensor

    def __init__(
        self,
        encoder: Encoder,
        projector: nn.Module,
        *,
        width: int,
        prototypes: int = 65536,
        frozen_epochs: int = 1,
        momentum: float = 0.996,
        momentum_schedule: str = "constant",
    ) -> None:
        super().__init__(encoder, projector, momentum=momentum, momentum_schedule=momentum_schedule)
        self.prototypes = Prototypes(prototypes, width, frozen_epochs=frozen_epochs)
        self.teacher_prototypes = nn.Parameter(self.prototypes.weight.detach().clone(), requires_grad=False)
        self.register_buffer("center", torch.zeros(prototypes))

    def averaged_parameters(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the teacher's parameters and the student's parameters, including the prototypes."""
        teacher, student = super().averaged_parameters()
        return [*teacher, self.teacher_prototypes], [*student, self.prototypes.weight]

    def forward(self, views: list[Tensor], index: Tensor) -> Embeddings:
        """Compare all views with the student's prototypes, and the global crops with the teacher's."""
        with side_stream(views[0].device) as join:
            teacher = self.make_keys(global_crops(views))
        student = self.embed(views)
        join()
        return Embeddings(
            z=gather(student, 1),
            target=gather(teacher, 1),
            ids=gather(index),
            prototypes=self.prototypes(),
            # Copies, because the backward pass must not see values that have been updated.
            target_prototypes=self.teacher_prototypes.clone(),
            center=self.center.clone(),
            global_views=len(views[0]),
            compare=within_batch,
        )

    def after_step(self) -> None:
        """Move the teacher towards the student."""
        self.prototypes.after_step()
        super().after_step()

    def begin_epoch(self, epoch: int, *, step: int, steps: int) -> None:
        """Start to train the prototypes after the frozen epochs, and set the position in the momentum's schedule."""
        super().begin_epoch(epoch, step=step, steps=steps)
        self.prototypes.begin_epoch(epoch)

    @torch.no_grad()
    def update(self, batch: Embeddings, **settings: Any) -> None:
        """Move the center towards the mean of the teacher's scores."""
        scores = batch.assignments.target
        assert scores is not None
        self.center.lerp_(scores.mean((0, 1)).to(self.center.dtype), 1 - _CENTER_MOMENTUM)


def _build_swav(parts: Parts, settings: SwAVSettings) -> SwAV:
    return SwAV(
        parts.tower.encoder,
        parts.tower.projector,
        width=parts.tower.width,
        prototypes=settings.prototypes or 3000,
        frozen_epochs=settings.frozen_epochs,
        queue=settings.queue,
        queue_start=settings.queue_start,
    )


def _build_dino(parts: Parts, settings: DINOSettings) -> DINO:
    return DINO(
        parts.tower.encoder,
        parts.tower.projector,
        width=parts.tower.width,
        prototypes=settings.prototypes or 65536,
        frozen_epochs=settings.frozen_epochs,
        momentum=settings.momentum,
        momentum_schedule=settings.momentum_schedule,
    )


def _check_prototypes(run: Any) -> None:
    if run.prototypes == 1:
        raise ValueError("prototypes: expected at least 2, or 0 for the method's own number, got 1")


def _check_swav(run: Any) -> None:
    _check_prototypes(run)
    if run.queue_start and run.view_count != 2:
        raise ValueError(
            f"queue_start: the queue holds two global crops of each image, got --view-count {run.view_count}"
        )


_SWAV_PRESETS: dict[str, Settings] = {
    "cifar": {
        "head": "swav-cifar", "prototypes": 512, "frozen_epochs": 0, "loss": "swav", "views": "swav-cifar",
        "optimiser": "adam", "lr": 1e-3, "weight_decay": 1e-6},
    # The authors' script for batches of 256. Their epoch 15 is counted from 0, so it is the 16th epoch here.
    "imagenet": {
        "head": "swav", "prototypes": 3000, "frozen_epochs": 1, "queue": 3840, "queue_start": 16, "loss": "swav",
        "views": "swav+local6", "lr": 0.6, "warmup": 0.0, "epochs": 200},
    "imagenet100": {"epochs": 200},
}  # fmt: skip
_DINO_PRESETS: dict[str, Settings] = {
    # lightly's loss keeps the teacher's temperature at 0.04.
    "cifar": {
        "head": "dino-cifar", "prototypes": 2048, "frozen_epochs": 0, "momentum": 0.99,
        "loss": "dino(teacher_temperature=0.04)", "views": "dino-cifar"},
    # The authors' command for a ResNet-50: learning rate 0.03 per 256 images, eight local crops, gradients clipped at 3
    "imagenet": {
        **SGD, "head": "dino", "prototypes": 65536, "frozen_epochs": 1, "momentum": 0.996, "momentum_schedule": "cosine",
        "loss": "dino(teacher_temperature=0.04)", "views": "dino+local8", "lr": 0.03, "lr_end": 1e-6 / 0.03,
        "grad_clip": 3.0, "grad_clip_each": True},
    "imagenet100": {"lr": 0.015, "batch": 128, "epochs": 400, "norm_views": "each"},  # solo-learn: batch, epochs, views
}  # fmt: skip

ROWS = (
    FrameworkRow(
        name="swav",
        summary="prototypes, to which all views of a sample are assigned alike",
        settings=SwAVSettings,
        build=_build_swav,
        negatives=lambda run, views: 0,
        check=_check_swav,
        unused=lambda settings: () if settings.queue_start else ("queue",),
        offers=("assignments",),
        collapse_remedy="more --frozen-epochs",
        losses={"swav": {"head": "swav-cifar", "prototypes": 512, "frozen_epochs": 0}},
        presets={"swav": _SWAV_PRESETS},
    ),
    FrameworkRow(
        name="dino",
        summary="prototypes, and a teacher whose assignments are predicted",
        settings=DINOSettings,
        build=_build_dino,
        negatives=lambda run, views: 0,
        has_target=True,
        check=_check_prototypes,
        offers=("assignments",),
        collapse_remedy="a teacher that changes more slowly (--momentum closer to 1) or more --frozen-epochs",
        losses={"dino": {"head": "dino-cifar", "prototypes": 2048, "frozen_epochs": 0}},
        presets={"dino": _DINO_PRESETS},
    ),
)
