"""The base class of frameworks with a momentum encoder, and MoCo v2, which keeps a queue of the momentum encoder's keys."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from contrapose.distributed import gather
from contrapose.embeddings import Embeddings, with_queue
from contrapose.lab.cuda.streams import side_stream
from contrapose.lab.frameworks.framework import (
    Framework,
    FrameworkRow,
    Parts,
    QueueSettings,
    check_global_crops,
    global_crops,
    other_views_of_batch,
    register_queue,
    replace_oldest,
    separate_views,
)
from contrapose.lab.networks.encoder import Encoder
from contrapose.lab.networks.norms import split_norms
from contrapose.lab.settings import Rule, setting
from contrapose.pairs import unit
from contrapose.randomness import bits


@dataclass(frozen=True, kw_only=True)
class MomentumSettings:
    """The setting of frameworks with a momentum encoder."""

    momentum: float = setting(0.99, Rule(most=1, always_recorded=True, ignored_elsewhere=True))
    """Momentum of the key encoder or the teacher. The memory bank always uses 0.5."""


@dataclass(frozen=True, kw_only=True)
class ScheduledMomentumSettings(MomentumSettings):
    """The settings of frameworks whose momentum may follow a schedule."""

    momentum_schedule: str = setting(
        "constant",
        Rule(
            choices=("constant", "cosine"),
            recorded_as="rising",
            recorded_values={"constant": False, "cosine": True},
        ),
    )
    """constant: the momentum does not change; cosine: the momentum rises to 1 over the run, step by step along half a cosine."""


@dataclass(frozen=True, kw_only=True)
class MoCoSettings(MomentumSettings, QueueSettings):
    """The settings of MoCo v2."""

    norm_splits: int = setting(1, Rule(least=1, always_recorded=True))
    """Split the batch into this many parts for batch norm, as on that many GPUs, and shuffle the keys between the parts."""
    symmetric: bool = False
    """Use both views as queries, each with the other view's key; otherwise only the first view is a query. With more than two
    views, all views are queries in any case."""
    batch_negatives: bool = False
    """Use the other queries in the batch as negatives, in addition to the queue."""


class MomentumFramework(Framework):
    """A query network and its exponential moving average θ_k ← m θ_k + (1-m) θ_q.

    The average is updated after each step. This is equivalent to MoCo's order, which updates it before the next keys are
    computed. With a cosine schedule, m rises to 1 along half a cosine over the run, step by step (BYOL, MoCo v3, DINO).
    """

    step: Tensor

    def __init__(
        self,
        encoder: Encoder,
        projector: nn.Module,
        *,
        momentum: float,
        momentum_schedule: str = "constant",
        has_score: bool = False,
    ) -> None:
        super().__init__(encoder, projector, has_score=has_score)
        if not 0 <= momentum <= 1:
            raise ValueError(f"momentum: expected a number from 0 to 1, got {momentum!r}")
        self.momentum, self.is_scheduled = momentum, momentum_schedule == "cosine"
        # The number of steps so far, for the schedule: a tensor, because a captured step reads and advances it
        self.register_buffer("step", torch.zeros((), dtype=torch.long), persistent=False)
        self.total_steps = 1
        # Copied after the batch norms were split, so that keys are normalised in the same way as queries.
        self.keys = copy.deepcopy(nn.Sequential(encoder, projector)).requires_grad_(False)

    @torch.no_grad()
    def make_keys(self, views: list[Tensor]) -> Tensor:
        """Return the momentum encoder's embeddings (V, B, d)."""
        return self.split_score(self.encode(self.keys, views))[0]

    def averaged_parameters(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the averaged parameters (EMA) and the parameters that they track."""
        return list(self.keys.parameters()), list(nn.Sequential(self.encoder, self.projector).parameters())

    def compiled_networks(self) -> list[nn.Module]:
        """Return the networks of the query encoder and the key encoder."""
        encoder = self.keys[0]
        assert isinstance(encoder, Encoder)
        return [*super().compiled_networks(), encoder.network]

    @torch.no_grad()
    def after_step(self) -> None:
        """Move the key network's parameters towards the query network's."""
        # All parameters are updated in one kernel. Buffers (running statistics) are not averaged.
        keys, query = (_of_this_process(parameters) for parameters in self.averaged_parameters())
        if not self.is_scheduled:
            torch._foreach_lerp_(keys, query, 1 - self.momentum)
            return
        ahead = list(torch._foreach_sub(query, keys))
        torch._foreach_mul_(ahead, self._ema_rate().to(ahead[0].dtype))
        torch._foreach_add_(keys, ahead)
        self.step += 1

    def _ema_rate(self) -> Tensor:
        """Return 1 - m of the current step, which falls to 0 by the end of training."""
        # In float64: in float32, π·step/steps would be the same for many steps of a long run.
        angle = math.pi * self.step.double() / self.total_steps
        return (1 - self.momentum) * (1 + torch.cos(angle)) / 2

    def begin_epoch(self, epoch: int, *, step: int, steps: int) -> None:
        """Set the position in the schedule of the momentum."""
        self.step.fill_(step)
        self.total_steps = steps


def _of_this_process(parameters: list[Tensor]) -> list[Tensor]:
    """Return the parameters, or this process's parts if they are divided: an average of weights needs no other ones."""
    return [p.to_local() if isinstance(p, DTensor) else p for p in parameters]


class MoCo(MomentumFramework):
    """MoCo v2. With two views, the first view is the query and the second is its key. If `symmetric`, or with more views, every
    view is a query, and the other views' keys are its positives (CACR, Alg. 3). Local crops have no keys.

    The last view's keys overwrite the oldest rows of the queue. With `norm_splits`, batch norm is computed separately in each
    part of the batch, and keys are shuffled between the parts, so that batch statistics do not reveal which key belongs to which
    query (shuffled batch norm, as on that many GPUs).
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
        batch_negatives: bool = False,
        norm_splits: int = 1,
        symmetric: bool = False,
        has_score: bool = False,
    ) -> None:
        if norm_splits < 1:
            raise ValueError(f"norm_splits: expected at least 1, got {norm_splits!r}")
        if norm_splits > 1:
            split_norms(encoder, norm_splits)
            split_norms(projector, norm_splits)
        super().__init__(encoder, projector, momentum=momentum, has_score=has_score)
        self.norm_splits = norm_splits
        self.batch_negatives, self.symmetric = batch_negatives, symmetric
        register_queue(self, unit(torch.randn(size, width)))

    def forward(self, views: list[Tensor], index: Tensor) -> Embeddings:
        """Compare the queries with their keys and with the queue."""
        each = separate_views(views)
        one_query = len(each) == 2 and not self.symmetric
        # Local crops are queries only.
        key_views = each[: sum(len(group) for group in global_crops(views))]
        with side_stream(each[0].device) as join:
            keys = self._shuffled_keys(key_views[1:] if one_query else key_views, index)
        query, score = self.split_score(gather(self.embed(each[:1] if one_query else each), 1))
        join()
        # A copy, because the backward pass must not see rows that `update` has replaced.
        compare = with_queue(self.rows.clone(), batch=self.batch_negatives)
        return Embeddings(z=query, target=gather(keys, 1), score=score, ids=gather(index), compare=compare)

    def _shuffled_keys(self, views: list[Tensor], index: Tensor) -> Tensor:
        if self.norm_splits == 1:
            return self.make_keys(views)
        # The order depends only on the images and the queue, so a resumed run has the same order. `place` stays a tensor, so the
        # host never waits for the device.
        order = torch.argsort(bits(index.to(self.place.device), self.place))
        keys = self.make_keys([group[:, order] for group in views])
        return keys[:, torch.argsort(order)]

    @torch.no_grad()
    def update(self, batch: Embeddings, **settings: Any) -> None:
        """Replace the queue's oldest rows with the last view's keys."""
        assert batch.target is not None
        replace_oldest(self.rows, self.place, unit(batch.target[-1]))


def _build_moco(parts: Parts, settings: MoCoSettings) -> MoCo:
    return MoCo(
        parts.tower.encoder,
        parts.tower.projector,
        width=parts.tower.width,
        size=settings.queue,
        momentum=settings.momentum,
        norm_splits=settings.norm_splits,
        symmetric=settings.symmetric,
        batch_negatives=settings.batch_negatives,
        has_score=parts.has_score,
    )


def _moco_negatives(run: Any, views: int) -> int:
    queries = 1 if views == 2 and not run.symmetric else views
    return int(run.queue) + int(run.batch_negatives) * other_views_of_batch(run, queries)


def _check_moco(run: Any) -> None:
    check_global_crops(run)
    if run.batch % run.norm_splits:
        raise ValueError(f"norm_splits: a batch of {run.batch} cannot be split into {run.norm_splits} equal parts")


ROWS = (
    FrameworkRow(
        name="moco",
        summary="a momentum encoder's keys and a queue of them (MoCo v2)",
        settings=MoCoSettings,
        build=_build_moco,
        negatives=_moco_negatives,
        check=_check_moco,
    ),
)
