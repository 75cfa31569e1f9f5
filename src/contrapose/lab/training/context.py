"""The context of a training step: everything that the trainer passes to eager and graphed steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from contrapose.embeddings import Embeddings
from contrapose.gradient_cache import MicroBatch, encode_twice
from contrapose.lab.frameworks import Framework
from contrapose.lab.modalities import Reader, ViewMaker
from contrapose.lab.modalities.source import BlockReader
from contrapose.lab.training.precision import autocast
from contrapose.lab.training.run import Run
from contrapose.losses import Loss
from contrapose.metrics import feature_std, penalties
from contrapose.pairs import unit
from contrapose.randomness import blocked_permutation, permutation

Batch = tuple[Tensor, list[Tensor]]  # sample indices, and the samples' views
OnStep = Callable[[int, float, float], None]  # number of completed steps in the epoch, a recent loss, steps per second
_WINDOW = 8192  # samples of tars that are shuffled together; it is part of a run's order, and so of its results
_MANY_PAIRS = 2**25  # if a batch has more similarities than this, what the loss does to them is not measured


@dataclass(eq=False, kw_only=True)
class StepContext:
    """A run's networks, data and optimiser. Each step reads the context and stores the last batch's embeddings in `latest`."""

    run: Run
    device: torch.device
    network: Framework
    # The network, or with GradCache its first half (`Embed`); wrapped in DistributedDataParallel if there are several processes
    learner: nn.Module
    criterion: Loss
    optimiser: Optimizer
    scaler: torch.amp.GradScaler
    reader: Reader
    views: ViewMaker
    samples: int
    steps_per_epoch: int
    rank: int = 0
    world_size: int = 1
    is_sharded: bool = False  # whether the network's parameters are divided among the processes
    recomputes: bool = False  # whether blocks of the encoder compute their activations again in the backward pass
    log: Callable[[str], None] = print
    must_stop: Callable[[], bool] = field(default=lambda: False)  # whether a signal has requested a stop
    ids: Tensor | None = None  # (N,) on the device; samples with equal ids are never negatives of each other
    labels: Tensor | None = None  # (N,) on the device, for a supervised loss
    latest: Embeddings | None = None

    def loss(self, views: list[Tensor], index: Tensor) -> Tensor:
        """Return the loss of a batch. Only the embeddings are computed in low precision; the loss is computed in float32."""
        # The criterion is outside autocast: at a low temperature, a log-sum-exp in bf16 would amplify the rounding error.
        with autocast(self.device, self.run.precision):
            embeddings = self._identified(self.learner(views, index))
        if self.labels is not None:
            embeddings = replace(embeddings, sample_labels=self.labels)
        loss: Tensor = self.criterion(embeddings)
        self.latest = embeddings
        return loss

    def order(self, epoch: int) -> Tensor:
        """Return the sample indices of an epoch (counted from 0) in order; a last incomplete step is dropped."""
        # With several epoch slices, one pass over the data in random order is divided into that many epochs.
        passes, part = divmod(epoch, self.run.epoch_slices)
        count = self.steps_per_epoch * self.run.accumulate * self.run.batch
        blocks = self.reader.blocks if isinstance(self.reader, BlockReader) else None
        if blocks is None:
            order = permutation(self.samples, self.run.seed, passes, device=self.device)
        else:
            order = blocked_permutation(blocks, _WINDOW, self.run.seed, passes).to(self.device)
        return order[part * count : (part + 1) * count]

    def whole_loss(self, batches: list[Batch]) -> Tensor:
        """Return the loss over all batches of a step (GradCache). The backward pass encodes each batch a second time."""
        with autocast(self.device, self.run.precision):
            parts = encode_twice([MicroBatch(self.learner, views) for _, views in batches])
        index = torch.cat([index for index, _ in batches])
        embeddings = self._identified(self.network.compare(torch.cat(parts, 1), index))
        loss: Tensor = self.criterion(embeddings)
        # Detached, because the autograd graph would keep the views of the whole step in memory.
        score = None if embeddings.score is None else embeddings.score.detach()
        self.latest = replace(embeddings, z=embeddings.z.detach(), score=score)
        return loss

    def _identified(self, embeddings: Embeddings) -> Embeddings:
        """Give samples with equal content the same id, so that they are never negatives of each other; except with a bank."""
        if self.ids is None or embeddings.ids is None or self.network.bank is not None:
            return embeddings
        return replace(embeddings, ids=self.ids[embeddings.ids])

    def batch_metrics(self) -> dict[str, float | None]:
        """Return metrics of the last batch: its standard deviation, as in SimSiam's plots, the parts of a sum, the penalties."""
        parts = {f"loss_{name}": float(value) for name, value in self.criterion.latest_parts.items()}
        return self._deviation() | parts | self.penalties()

    def _deviation(self) -> dict[str, float | None]:
        if self.latest is None:
            return {}
        z = unit(self.latest.z.detach()).flatten(0, -2)
        if not bool(z.any()):  # a collapse to the origin: all embeddings are equal
            return {"batch_feature_std": 0.0}
        with suppress(ValueError):  # an embedding that is zero or not finite has no direction
            return {"batch_feature_std": feature_std(z)}
        return {}

    def penalties(self) -> dict[str, float | None]:
        """Return a summary of the loss's penalties on the last batch's similarities.

        The summary is empty if the loss is not a function of similarities, or if there are too many of them.
        """
        if self.latest is None or self.criterion.traits.takes != "pairs":
            return {}
        in_ring = self.latest.in_ring and self.world_size > 1
        if self.run.dims or in_ring:  # each prefix has similarities of its own; no process of a ring has all
            return {}
        if math.prod(self.latest.pairs.shape) > _MANY_PAIRS:
            return {}
        self.criterion.eval()  # computing the loss again must not update its state
        summary = penalties(self.criterion.with_provided(self.latest), self.latest.pairs).summary()
        self.criterion.train()
        return summary

    def parameters(self) -> list[nn.Parameter]:
        """Return all trained parameters: the network's and the criterion's."""
        return [p for module in (self.network, self.criterion) for p in module.parameters() if p.requires_grad]
