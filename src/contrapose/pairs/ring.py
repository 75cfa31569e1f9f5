"""`RingPairs`: the anchors of this process against the candidates of all processes, which travel around a ring.

`gather` copies the embeddings of all processes to each of them. In a ring, a process has its own rows, and the candidates of
one other process at a time: the memory for embeddings does not grow with the number of processes. The statistics of an
anchor's negatives are computed for each block of candidates, by the engine that would compute them for all, and merged. In
the backward pass the candidates travel once more, followed by their gradient.

Only a few numbers per anchor are gathered: statistics, similarities to the positives, and ids. An objective then computes the
loss of the whole batch, as it does from gathered embeddings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from contrapose.distributed import (
    Group,
    average_gradient,
    check_equal_calls,
    gather,
    raise_on_all_ranks,
    sum_over_ranks,
    world_size,
)
from contrapose.pairs.guided import AtMost, SelfGuided
from contrapose.pairs.layout import Layout
from contrapose.pairs.negatives import Choice, Hardest, Negatives, OriginChoice, ViewChoice, check_has_negatives, steps
from contrapose.pairs.pairs import Pairs
from contrapose.pairs.ring_reduction import Reduce, RingRequest, Route, hardest_by_block, reduce_around
from contrapose.reduce import Count, KernelInputs, SoftplusSum, Source, Statistic, of_rows, reduce_rows, sum_rows
from contrapose.reduce.merge import MergePlan
from contrapose.reduce.statistics import S, learned_tensors

# What an objective can read from gathered embeddings only.
_NOT_HERE = ("anchor", "pool", "positive", "pool_id", "pool_view", "similarities")
_KNOWN = "other_views(), same_view(), stored_rows(), batch_rows(), self_guided(…), and hardest(…) as the last one"


def cannot_travel(chosen: Sequence[Choice]) -> Choice | None:
    """Return the first choice of negatives that cannot be made block by block in a ring; None if all can."""
    for i, choice in enumerate(chosen):
        is_last_hardest = isinstance(choice, Hardest) and i + 1 == len(chosen)
        if not isinstance(choice, ViewChoice | OriginChoice | SelfGuided | AtMost) and not is_last_hardest:
            return choice
    return None


@dataclass(frozen=True, eq=False, kw_only=True)
class RingPairs(Layout):
    """Pairs of all processes, of which this one has its own anchors and candidates. See `around_ring`."""

    own: Pairs
    group: Group = None

    def __repr__(self) -> str:
        return f"RingPairs({self.shape[0]} anchors, {self.shape[1]} candidates; of this process: {self.own!r})"

    def __getattr__(self, name: str) -> Any:
        if name in _NOT_HERE:
            raise ValueError(
                f"pairs: this loss reads {name!r} of all processes, which no process of a ring has; gather the embeddings, and "
                f"call .sharded() instead"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def shape(self) -> tuple[int, int]:
        """Number of anchors, number of candidates, of all processes."""
        (n, m), size = self.own.shape, world_size(self.group)
        return size * n, self.stored + size * (m - self.stored)

    @property
    def positive_count(self) -> int:
        """Number of positives of each anchor; 0 with a single view."""
        return self.own.positive_count

    @property
    def have_targets(self) -> bool:
        """Whether positives are targets; see `Pairs`."""
        return self.own.have_targets

    @cached_property
    def anchor_id(self) -> Tensor:
        """Sample ids of the anchors of all processes."""
        return self._gather(self._own_ids)

    @property
    def anchor_view(self) -> Tensor:
        """Views of the anchors of all processes."""
        return self._gather(self.own.anchor_view)

    def positives(self, *, may_be_empty: bool = False) -> Tensor:
        """Return the similarities of the anchors of all processes to their positives; see `Pairs.positives`."""
        return self._gather(self.own.positives(may_be_empty=may_be_empty))

    def positive_distances(self) -> Tensor:
        """Return ‖z - z⁺‖² of the anchors of all processes."""
        return self._gather(self.own.positive_distances())

    def reduce(
        self, *statistics: Statistic, negatives: Negatives = None, may_be_empty: bool = False
    ) -> tuple[Tensor, ...]:
        """Return statistics of the negatives of the anchors of all processes; see `Pairs.reduce`."""
        chosen = self._choices(negatives)
        counted = bool(chosen) and not may_be_empty
        own = self._of_own_rows(statistics)
        plan = MergePlan.of([*own, Count()] if counted else own)
        values = plan.merge(self._around(chosen, reduce_rows, plan.computed))
        if counted:
            *values, count = values  # type: ignore[assignment]
            raise_on_all_ranks(lambda: check_has_negatives(count, steps(negatives)), self.group)
        return tuple(self._gather(value) for value in values)

    def sum(self, statistic: SoftplusSum, *, negatives: Negatives = None) -> Tensor:
        """Return the sum of a statistic over the anchors of all processes, a scalar."""
        if steps(negatives):  # which may leave an anchor without negatives
            return self.reduce(statistic, negatives=negatives)[0].sum()
        own = self._of_own_rows([statistic])
        (sums,) = self._around(self._choices(None), lambda source, wanted: (sum_rows(source, wanted),), own)
        return sum_over_ranks(sums.sum(0), self.group)

    def between_views(self) -> Iterator[tuple[int, int, RingPairs]]:
        """Yield (v, w, view v as anchors compared with view w); see `Pairs.between_views`."""
        for v, w, between in self.own.between_views():
            yield v, w, RingPairs(own=between, group=self.group, **between.layout())

    def _around(self, chosen: tuple[Choice, ...], reduce: Reduce, statistics: Sequence[Statistic]) -> list[Tensor]:
        """Return the statistics of each block of candidates."""
        own, route = self.own, Route(self.stored, self.group)
        _check_parameters(statistics, own)
        check_equal_calls(own.pool, _call(own, chosen, statistics), self.group)
        by_step: list[tuple[Choice, ...]] = [chosen] * route.steps(own.pool)
        hardest = chosen[-1] if chosen else None
        if isinstance(hardest, Hardest) and not hardest.keeps_all(self.shape[1]):
            before = chosen[:-1]
            first = RingRequest(route, self._sources([before] * len(by_step)), reduce_rows, ())
            shares = hardest_by_block(first, own.anchor.detach(), own.pool.detach(), hardest, self.shape[1])
            by_step = [(*before, share) for share in shares]
        request = RingRequest(route, self._sources(by_step), reduce, tuple(statistics))
        return reduce_around(request, own.anchor, own.pool)

    def _sources(self, chosen: list[tuple[Choice, ...]]) -> Any:
        """Return the function that compares a block of candidates with the anchors, with each step's choice of negatives."""

        def source(step: int, anchor: Tensor, pool: Tensor) -> Source:
            own, size = self.own, world_size(self.group)
            owner = (self._rank - step) % size
            half, pool_id = own.kernel_inputs.half_precision, self._pool_ids[owner]
            block = replace(
                own,
                anchor=anchor,
                pool=pool,
                anchor_id=self._own_ids,
                pool_id=pool_id if step == 0 else pool_id[self.stored :],
                # Candidates of another process have other positions, so that ids are compared.
                kernel_inputs=own.kernel_inputs if step == 0 else KernelInputs(half),
                view_ids=own.view_ids if step == 0 else lambda: (own.anchor_view, own.pool_view[self.stored :]),
            )
            # Empty blocks are no error: the count of all blocks is checked.
            return block.source(chosen[step], may_be_empty=True)

        return source

    def _choices(self, negatives: Negatives) -> tuple[Choice, ...]:
        chosen = self.own.choices(negatives)
        unknown = cannot_travel(chosen)
        if unknown is not None:
            raise ValueError(
                f"negatives: {unknown!r} cannot be used in a ring: expected {_KNOWN}; for others, gather the embeddings and "
                "write .sharded()"
            )
        return chosen

    @property
    def _rank(self) -> int:
        return dist.get_rank(self.group)

    @cached_property
    def _own_rows(self) -> Tensor:
        """Positions of this process's anchors among those of all processes, which are ordered by view, then by process."""
        views, samples = self.view_count, len(self.own.anchor) // self.view_count
        first = torch.arange(views, device=self.own.anchor.device) * (samples * world_size(self.group))
        return (first[:, None] + self._rank * samples + torch.arange(samples, device=first.device)).flatten()

    def _of_own_rows(self, statistics: Sequence[S]) -> list[S]:
        return of_rows(statistics, self._own_rows, partial(average_gradient, group=self.group))

    def _gather(self, x: Tensor) -> Tensor:
        """Return a value of the anchors of all processes, ordered by view, then by process."""
        return gather(x.unflatten(0, (self.view_count, -1)), 1, group=self.group).flatten(0, 1)

    def _ids(self, ids: Tensor, owner: int | None = None) -> Tensor:
        """Return ids that are different on every process if they are positions; ids of stored rows stay."""
        if not self.own.ids_are_positions:
            return ids
        samples, owner = len(self.own.anchor) // self.view_count, self._rank if owner is None else owner
        return torch.where(ids < 0, ids, ids + owner * samples)

    @cached_property  # read for each block, in both passes
    def _own_ids(self) -> Tensor:
        """Ids of this process's anchors."""
        return self._ids(self.own.anchor_id)

    @cached_property
    def _pool_ids(self) -> list[Tensor]:
        """Ids of the candidates of each process."""
        own, size = self.own.pool_id, world_size(self.group)
        if self.own.ids_are_positions:
            return [self._ids(own, owner) for owner in range(size)]
        return list(gather(own, group=self.group).unflatten(0, (size, -1)))


def around_ring(pairs: Pairs, *, group: Group = None) -> Pairs | RingPairs:
    """Return the pairs of all processes from this process's own; on one process, the same pairs.

    Embeddings are not gathered: each process's candidates travel from one process to the next, so that the memory for
    embeddings does not grow with the number of processes. Values and, with DistributedDataParallel, gradients equal those of
    `gather` and `Pairs.sharded`. Every process must pass the same number of rows, of at least two samples.

        loss = nt_xent(around_ring(two_views(z1, z2)), temperature=0.5)

    Negatives can be chosen by view, by origin and by hardness (`hardest` as the last choice keeps k similarities per anchor
    in memory). Losses that read all embeddings, such as `supcon`, and `similarity="neg_euclid"` need gathered ones. The
    backward pass computes each similarity once more than with gathered embeddings.

    pairs   the result of `two_views`, `views`, `cross`, `queue` or `bank` of this process's embeddings
    group   process group that this process belongs to; default: all processes

    >>> from contrapose import two_views
    >>> around_ring(two_views(torch.eye(4), torch.eye(4))).shape  # one process
    (8, 8)
    """
    if not isinstance(pairs, Pairs) or pairs.is_sharded:
        kind = "sharded pairs" if isinstance(pairs, Pairs) else type(pairs).__name__
        raise ValueError(
            f"pairs: expected the pairs of this process's own embeddings, as from two_views(z1, z2), got {kind}"
        )
    if world_size(group) == 1:
        return pairs
    if pairs.ids_are_positions and pairs.anchor_id.dtype == torch.int64:
        # Positions have 32 bits until they are compared with ids that are given.
        raise ValueError("negative_ids: expected ids too: positions in the batch differ between processes; pass ids=…")
    if pairs.similarity == "neg_euclid":
        raise ValueError(
            "pairs: similarity='neg_euclid' cannot be used in a ring, since each process measures distances from the mean of its "
            "own embeddings; use similarity='cosine' or 'dot', or gather the embeddings and write .sharded()"
        )
    return RingPairs(own=pairs, group=group, **pairs.layout())


def _check_parameters(statistics: Sequence[Statistic], own: Pairs) -> None:
    """Raise ValueError for a temperature whose parameters the backward pass of a ring does not reach."""
    sample = own.anchor[:1, :1].detach()
    if any(statistic.logit is not None and statistic.logit.needs_autograd(sample) for statistic in statistics):
        raise ValueError(
            "temperature: a function of similarity with parameters of its own cannot be used in a ring: expected a number, a "
            "tensor, learned(…) or a profile such as cosine(…); or gather the embeddings and write .sharded()"
        )


def _call(own: Pairs, chosen: tuple[Choice, ...], statistics: Sequence[Statistic]) -> str:
    """Return, in words, what decides which exchanges follow; these must be the same on every process."""
    learned = sum(tensor is not None for statistic in statistics for tensor in learned_tensors(statistic))
    of_anchors = f"anchors with{'' if own.anchor.requires_grad else 'out'} a gradient"
    ids = "no ids" if own.ids_are_positions else "given ids"
    # Names of types only: a number that changes in each step would be compared in each step.
    names = [type(part).__name__ for part in (*chosen, *statistics)]
    return f", {of_anchors}, {ids}, {learned} learned, {', '.join(names)}"
