"""MoCo: positives and negatives come from a slowly moving copy of the encoder."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from contrapose.cuda.streams import side_stream
from contrapose.distributed import gather
from contrapose.frameworks.framework import Framework, encode
from contrapose.networks.encoder import Encoder
from contrapose.networks.norms import split_norms
from contrapose.pairs import Pairs, queue, unit, views
from contrapose.randomness import bits


class _Momentum(Framework):
    """Query network and its exponential moving average θ_k ← m θ_k + (1-m) θ_q.

    The average moves after each step, which is MoCo's own order: there it moves before the next keys are made. With `rising`, m
    follows half a cosine to 1 over the training, an epoch at a time (BYOL, MoCo v3).
    """

    follow: Tensor

    def __init__(self, encoder: Encoder, projector: nn.Module, *, momentum: float, rising: bool = False) -> None:
        super().__init__(encoder, projector)
        if not 0 <= momentum <= 1:
            raise ValueError(f"momentum: expected a number from 0 to 1, got {momentum!r}")
        self.momentum, self.rising = momentum, rising
        # 1 - m, where a recorded step reads it
        self.register_buffer("follow", torch.tensor(1 - momentum), persistent=False)
        self.keys = copy.deepcopy(nn.Sequential(encoder, projector)).requires_grad_(False)

    @torch.no_grad()
    def make_keys(self, views_of: list[Tensor]) -> Tensor:
        """(V, B, d) by the momentum encoder."""
        return encode(self.keys, views_of)

    def compile_encoders(self) -> None:
        """The queries' and the keys'."""
        super().compile_encoders()
        self.keys[0].compile(dynamic=False)

    @torch.no_grad()
    def after_step(self) -> None:
        """The key network follows the query network; its running statistics are its own."""
        keys: list[Tensor] = list(self.keys.parameters())
        query: list[Tensor] = list(nn.Sequential(self.encoder, self.projector).parameters())
        if not self.rising:
            torch._foreach_lerp_(keys, query, 1 - self.momentum)
            return
        ahead = list(torch._foreach_sub(query, keys))
        torch._foreach_mul_(ahead, self.follow)
        torch._foreach_add_(keys, ahead)

    def begin(self, share: float) -> None:
        """1 - m falls to 0 as the training ends."""
        if self.rising:
            self.follow.fill_((1 - self.momentum) * (1 + math.cos(math.pi * share)) / 2)


class MoCo(_Momentum):
    """MoCo v2. Two views: the first is the query and the second its key. If `symmetric`, or with more of them: every view is a
    query, and the keys of the others its positives (CACR, Alg. 3).

    The queue takes the last view's keys, the oldest rows leave. With `norm_splits`, batch norms see parts of the batch and
    the images change parts between queries and keys, so that statistics do not tell which key belongs to which query
    (shuffled batch norm, as on that many GPUs).
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
    ) -> None:
        if norm_splits < 1:
            raise ValueError(f"norm_splits: expected at least 1, got {norm_splits!r}")
        if norm_splits > 1:
            split_norms(encoder, norm_splits)
            split_norms(projector, norm_splits)
        super().__init__(encoder, projector, momentum=momentum)
        self.norm_splits = norm_splits
        if size < 1:
            raise ValueError(f"size: expected a queue of at least one row, got {size!r}")
        self.batch_negatives, self.symmetric = batch_negatives, symmetric
        self.register_buffer("rows", unit(torch.randn(size, width)))
        self.register_buffer("place", torch.zeros((), dtype=torch.long))
        self._latest: Tensor | None = None

    def forward(self, views_of: list[Tensor], index: Tensor) -> Pairs:
        """Queries against keys and queue."""
        # Each view has a pass of its own, and its own batch statistics.
        seen = [view[None] for group in views_of for view in group]
        one = len(seen) == 2 and not self.symmetric
        with side_stream(seen[0].device) as join:
            keys = self._shuffled_keys(seen[1:] if one else seen, index)
        query = gather(self.embed(seen[:1] if one else seen), 1)
        join()
        keys, ids = gather(keys, 1), gather(index)
        self._latest = unit(keys[-1])
        rows = self.rows.clone()  # what the backward pass sees must not change under it
        if one:
            query, keys = query[0], keys[0]
        return queue(query, keys, rows, batch=self.batch_negatives, ids=ids).sharded()

    def _shuffled_keys(self, views_of: list[Tensor], index: Tensor) -> Tensor:
        if self.norm_splits == 1:
            return self.make_keys(views_of)
        # A function of the images and the queue, so it resumes; the place stays a tensor, so nothing waits for the device.
        order = torch.argsort(bits(index.to(self.place.device), self.place))
        keys = self.make_keys([group[:, order] for group in views_of])
        return keys[:, torch.argsort(order)]

    @torch.no_grad()
    def after_batch(self) -> None:
        """The newest keys take the oldest rows' places."""
        if self._latest is None:
            return
        fresh = self._latest[-len(self.rows) :]
        places = (self.place + torch.arange(len(fresh), device=fresh.device)) % len(self.rows)
        self.rows[places] = fresh.to(self.rows.dtype)
        self.place.copy_((self.place + len(fresh)) % len(self.rows))
        self._latest = None


class MoCoV3(_Momentum):
    """MoCo v3: no queue; queries pass through a predictor and meet the keys of the other views of the batch.

    Its loss is `moco_v3`: negatives are those of the other views alone.
    """

    def __init__(
        self,
        encoder: Encoder,
        projector: nn.Module,
        predictor: nn.Module,
        *,
        momentum: float = 0.99,
        rising: bool = False,
    ) -> None:
        super().__init__(encoder, projector, momentum=momentum, rising=rising)
        self.predictor = predictor

    def forward(self, views_of: list[Tensor], index: Tensor) -> Pairs:
        """Every view a query, the keys of the others its positives."""
        with side_stream(views_of[0].device) as join:
            keys = self.make_keys(views_of)
        query = encode(nn.Sequential(self.encoder, self.projector, self.predictor), views_of)
        join()
        return views(gather(query, 1), keys=gather(keys, 1), ids=gather(index)).sharded()
