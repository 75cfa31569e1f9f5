"""`Pairs`: anchors, their positives and a pool of candidates. Losses take `Pairs`; `pairs.build` makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise

from torch import Tensor

from contrapose.distributed import (
    Group,
    T,
    average_gradient,
    gather,
    raise_on_all_ranks,
    share_of_rows,
    sum_over_ranks,
    world_size,
)
from contrapose.pairs.ids import opposite_views
from contrapose.pairs.layout import Layout
from contrapose.pairs.negatives import (
    Choice,
    Hardest,
    Negatives,
    ViewChoice,
    check_has_negatives,
    choices_of,
    may_leave_none,
    narrow,
    other_views,
)
from contrapose.pairs.positives import other_views_of
from contrapose.pairs.similarities import Similarities
from contrapose.reduce import (
    ALL,
    Block,
    KernelInputs,
    Logit,
    Selection,
    SoftplusSum,
    Statistic,
    cross_entropy_of_views,
    of_rows,
    reduce_rows,
    sigmoid_loss_of_views,
    sum_rows,
)
from contrapose.reduce.unit import matmul, products, squared_distances, squared_view_distances


@dataclass(frozen=True, eq=False, kw_only=True)
class Pairs(Layout):
    """Anchors, their positives and a pool of candidates: rows whose products are the similarities.

    Rows are unit vectors unless `similarity` says otherwise.

    The functions in `contrapose.pairs` make `Pairs`, after checking and normalising the input. Exactly one of
    `positive_rows` and `positive_similarity` is given. With several directions, `cross` makes each anchor from two unit
    vectors; its pool rows are zero in one half, so that products are still similarities.

    >>> import torch
    >>> from contrapose import two_views
    >>> pairs = two_views(torch.eye(4), torch.eye(4))
    >>> pairs.shape  # (anchors, candidates)
    (8, 8)
    >>> pairs.positives().shape
    torch.Size([8, 1])
    """

    anchor: Tensor  # (n, d)
    pool: Tensor  # (m, d)
    anchor_id: (
        Tensor  # (n,) sample ids; these ids and `pool_sample` may be shared with other pairs and must not be written to
    )
    pool_id: Tensor  # (m,)
    view_ids: Callable[[], tuple[Tensor, Tensor]]  # (n,) and (m,): views of anchors and pool, computed on demand
    # (n, k, d): the positives; if an anchor is made of two vectors, positives are compared with the first
    positive_rows: Tensor | None = None
    positive_similarity: Tensor | None = None  # (n, k): similarities to the same sample's anchors in the views after it
    kernel_inputs: KernelInputs = field(default_factory=KernelInputs)  # properties of anchors and pool that kernels use
    ids_are_positions: bool = False  # whether ids are positions in the batch, since none were given
    is_sharded: bool = False  # whether each process reduces a part of the anchors; see `sharded`
    group: Group = None  # the processes that share the anchors; None for all

    def __repr__(self) -> str:
        (n, m), views, each = self.shape, self.view_count, self.positive_count
        return (
            f"Pairs({n} anchors in {views} views, {each} positives each, {m} candidates, {self.stored} of them stored)"
        )

    @cached_property
    def anchor_view(self) -> Tensor:
        """(n,)."""
        return self.view_ids()[0]

    @cached_property
    def pool_view(self) -> Tensor:
        """View of each pool row, (m,); STORED for rows in a queue or a bank."""
        return self.view_ids()[1]

    @property
    def positive_count(self) -> int:
        """Number of positives of each anchor; 0 with a single view."""
        return self.positives(may_be_empty=True).shape[1] if self.positive_rows is None else self.positive_rows.shape[1]

    @property
    def positive(self) -> Tensor:
        """(n, k, d)."""
        if self.positive_rows is not None:
            return self.positive_rows
        return other_views_of(self.anchor.view(self.view_count, -1, self.anchor.shape[1]))

    @property
    def shape(self) -> tuple[int, int]:
        """Number of anchors, number of candidates."""
        return self.anchor.shape[0], self.pool.shape[0]

    def positives(self, *, may_be_empty: bool = False) -> Tensor:
        """Return the similarities to the positives, (n, k); k may be 0, as with a single view, only if `may_be_empty`."""
        if not may_be_empty:
            self.check_positives()
        if self.positive_similarity is not None:
            return self.positive_similarity
        return products(*self._compared_rows())

    def positive_distances(self) -> Tensor:
        """Return ‖z - z⁺‖² of unit vectors, (n, k), from their difference: 2 - 2s would cancel if they nearly coincide."""
        self.check_positives()
        if self.positive_similarity is not None:
            return squared_view_distances(self.anchor.view(self.view_count, -1, self.anchor.shape[1]))
        return squared_distances(*self._compared_rows())

    def _compared_rows(self) -> tuple[Tensor, Tensor]:
        """Return the part of the anchors with which positives are compared, (n, d), and the positives, (n, k, d)."""
        assert self.positive_rows is not None
        return self.anchor[:, : self.positive_rows.shape[2]], self.positive_rows

    @property
    def have_targets(self) -> bool:
        """Whether positives are targets: only anchors or only positives have a gradient, and views are not compared as equals."""
        if self.positive_rows is None:
            return False
        return self.detached or not (self.anchor.requires_grad and self.positive_rows.requires_grad)

    def reduce(
        self, *statistics: Statistic, negatives: Negatives = None, may_be_empty: bool = False
    ) -> tuple[Tensor, ...]:
        """Return statistics of each anchor's negatives, (n,) each.

        With `may_be_empty` a choice may leave anchors without negatives: their log-sum-exp is -inf, their expectation 0.
        """
        chosen = self.choices(negatives)
        if not self.is_sharded:
            return reduce_rows(self.source(chosen, may_be_empty), *statistics)
        values = self._on_share(reduce_rows, statistics, chosen, may_be_empty=may_be_empty)
        return tuple(gather(value, group=self.group) for value in values)

    def sum(self, statistic: SoftplusSum, *, negatives: Negatives = None) -> Tensor:
        """Return the sum of a statistic over all anchors, a scalar. On a GPU this takes one pass less than `reduce`."""
        chosen = self.choices(negatives)
        if not self.is_sharded:
            return sum_rows(self.source(chosen, may_be_empty=False), statistic)
        summed = self._on_share(sum_rows, [statistic], chosen, may_be_empty=False)
        return sum_over_ranks(summed, self.group)

    def mean_cross_entropy(self, logit: Logit, *, negatives: Negatives = None) -> Tensor | None:
        """Return the mean over anchors of -log e^{φ(s⁺)} / (e^{φ(s⁺)} + Σ_k e^{φ(s_k)}) as one node of the graph.

        Return None if there is no kernel for these pairs or this device; use `reduce` in that case.
        """
        if self.is_sharded or self.positive_similarity is None:
            return None
        # Without negatives the log-sum-exp is -inf and the loss is 0.
        source = self.source(self.choices(negatives), may_be_empty=may_leave_none(negatives))
        return cross_entropy_of_views(source, self.positive_similarity, logit)

    def mean_sigmoid_loss(self, logit: Logit, bias: float | Tensor, *, negatives: Negatives = None) -> Tensor | None:
        """Return the mean over anchors of SigLIP's loss as one node of the graph; None if there is no kernel for it."""
        if self.is_sharded or self.positive_similarity is None:
            return None
        source = self.source(self.choices(negatives), may_be_empty=False)
        return sigmoid_loss_of_views(source, self.positive_similarity, logit, bias)

    def source(self, chosen: tuple[Choice, ...], may_be_empty: bool, *, share: slice | None = None) -> _Rows:
        """Return these pairs, or a `share` of their anchors, in the form that `reduce` reads."""
        pairs = self if share is None else self._slice_anchors(share)
        # Comparing one view with one other needs a smaller matrix; with more views, it would take several matrices.
        in_views = self.has_views or self.is_symmetric
        # Local crops have no rows of their own view in the pool.
        in_views = in_views and not self.global_views
        if chosen and isinstance(chosen[0], ViewChoice) and in_views and (chosen[0].same or self.view_count == 2):
            first, samples = 0 if share is None else share.start, self.shape[0] // self.view_count
            return _RowsViewByView(pairs, chosen[1:], may_be_empty, chosen[0].same, samples, first)
        return _Rows(pairs, chosen, may_be_empty)

    def _on_share(
        self,
        reduce: Callable[..., T],
        statistics: Sequence[Statistic],
        chosen: tuple[Choice, ...],
        *,
        may_be_empty: bool,
    ) -> T:
        """Return `reduce` of this process's share of the anchors."""
        own = share_of_rows(self.shape[0], self.group)
        mine = self.source(tuple(choice.for_rows(own) for choice in chosen), may_be_empty, share=own)
        # Each process has the gradient of its own anchors. DistributedDataParallel would average that of a learned
        # temperature, but the parameter may be outside of it; averaging twice changes nothing.
        restricted = of_rows(statistics, own, partial(average_gradient, group=self.group))
        if not mine.negatives:
            return reduce(mine, *restricted)
        # An invalid choice of negatives on one rank must raise on all ranks, or the others would wait in `gather`.
        return raise_on_all_ranks(lambda: reduce(mine, *restricted), self.group)

    def choices(self, negatives: Negatives) -> tuple[Choice, ...]:
        """Check and return all choices to apply, starting with those that belong to these pairs."""
        chosen = choices_of(negatives, self.shape, partial(self.positives, may_be_empty=True))
        if not self.between_views_only:
            return chosen
        # Here `other_views()` keeps every negative; without it, kernels can compute the remaining choices.
        rest = chosen[1:] if chosen[:1] == (other_views(),) else chosen
        return (other_views(), *rest) if self.is_symmetric else rest

    def sharded(self, group: Group = None) -> Pairs:
        """Return the same pairs, made from gathered embeddings, with the work divided between processes.

        Each process reduces its share of the anchors, and the statistics, a few numbers per anchor, are exchanged. Values and,
        with DistributedDataParallel, gradients are the same as on one process. The gradient of a learned
        temperature is averaged, wherever its parameter is; a temperature that is a module of its own must be wrapped in
        DistributedDataParallel. `group` has the same meaning as in `gather`. `around_ring` needs no gathered embeddings.

            loss = nt_xent(two_views(gather(z1), gather(z2)).sharded(), temperature=0.5)
        """
        return replace(self, is_sharded=True, group=group) if world_size(group) > 1 else self

    def _slice_anchors(self, rows: slice) -> Pairs:
        return replace(
            self,
            anchor=self.anchor[rows],
            positive_rows=self.anchor[
                rows, None
            ],  # never read, since the positives are computed from the unsharded pairs
            positive_similarity=None,
            anchor_id=self.anchor_id[rows],
            kernel_inputs=KernelInputs(self.kernel_inputs.half_precision),
            view_ids=partial(self._views_of, rows),
            is_sharded=False,
        )

    def _views_of(self, rows: slice) -> tuple[Tensor, Tensor]:
        return self.anchor_view[rows], self.pool_view

    def similarities(self) -> Similarities:
        """Return the same pairs as similarity values, (n, k) and (n, m), without gradient to the embeddings."""
        no_negative = self.anchor_id[:, None] == self.pool_id
        if self.is_symmetric:
            no_negative |= self.anchor_view[:, None] == self.pool_view
        return Similarities(
            positive=self.positives(may_be_empty=True).detach(),
            negative=matmul(self.anchor.detach(), self.pool.detach().T),
            same_id=no_negative,
            anchor_id=self.anchor_id,
            pool_id=self.pool_id,
            pool=self.pool.detach(),
            anchor_view=self.anchor_view,
            pool_view=self.pool_view,
            **self.layout(),
        )

    def between_views(self) -> Iterator[tuple[int, int, Pairs]]:
        """Yield (v, w, view v as anchors compared with view w) for every ordered pair of different views.

        If the pool belongs to no view (queue, bank, one direction), yield all pairs once.
        """
        if not self.has_views:
            yield 0, 1, self
            return
        anchors, pool = self.anchor.unflatten(0, (self.view_count, -1)), self.pool.unflatten(0, (self.key_views, -1))
        ids = self.anchor_id.unflatten(0, (self.view_count, -1))
        for v in range(self.view_count):
            for w in range(self.key_views):
                if v != w:
                    yield (
                        v,
                        w,
                        Pairs(
                            anchor=anchors[v],
                            positive_rows=pool[w][:, None],
                            pool=pool[w],
                            anchor_id=ids[v],
                            pool_id=ids[w],
                            view_ids=partial(opposite_views, len(ids[v]), ids.device),
                            between_views_only=True,
                            detached=self.detached,
                            kernel_inputs=KernelInputs(self.kernel_inputs.half_precision),
                            similarity=self.similarity,
                            ids_are_positions=self.ids_are_positions,
                            is_sharded=self.is_sharded,
                            group=self.group,
                        ),
                    )


@dataclass(frozen=True)
class _Rows:
    """Pairs with a choice of negatives, in the form that `reduce` reads."""

    pairs: Pairs
    negatives: tuple[Choice, ...]
    may_be_empty: bool

    @property
    def anchor(self) -> Tensor:
        return self.pairs.anchor

    @property
    def pool(self) -> Tensor:
        return self.pairs.pool

    @property
    def spans(self) -> list[tuple[int, int, int]]:
        return [(0, *self.pairs.shape)]

    @property
    def kernel_inputs(self) -> KernelInputs:
        return self.pairs.kernel_inputs

    @cached_property  # cached: read several times in each step
    def selection(self) -> Selection | None:
        choice = self.negatives[0] if len(self.negatives) == 1 else None
        ceiling = None if choice is None else choice.ceiling()
        # Kernels can select negatives by id, by a ceiling, and by rank of similarities within [-1, 1]. Any other choice needs
        # the block.
        known = not self.negatives or isinstance(choice, Hardest) or ceiling is not None
        if not known or self.pairs.similarity != "cosine":
            return None
        if ceiling is not None and not self.may_be_empty:
            ceiling = replace(ceiling, check=partial(check_has_negatives, chosen=self.negatives))
        spans, pool, of = self.spans, self.pool.shape[0], None
        met = [(slice(start, end), self.candidates(slice(start, end))) for start, end, _ in spans]
        runs = [(rows, slice(*columns.indices(pool)[:2])) for rows, columns in met]
        if isinstance(choice, Hardest) and not choice.keeps_all(max(candidates for _, _, candidates in spans)):
            of = partial(choice.kept_count, candidates=min(candidates for _, _, candidates in spans))
        return Selection(self.pairs.anchor_id, self.pairs.pool_id, runs, of, self.kernel_inputs.id_period, ceiling)

    def candidates(self, rows: slice) -> slice:
        return ALL

    def similarity(self, rows: slice, *, bf16: bool = False) -> Tensor:
        return matmul(self.anchor[rows], self.pool[self.candidates(rows)].T, bf16=bf16)

    def block(self, rows: slice, similarity: Tensor) -> Block:
        pairs, pool = self.pairs, self.candidates(rows)
        same_id = pairs.anchor_id[rows, None] == pairs.pool_id[pool]
        if not self.negatives:  # views are not computed unless a choice asks for them
            return Block(rows, similarity, same_id, pool=pool)
        block = Block(rows, similarity, same_id, pairs.anchor_view[rows, None], pairs.pool_view[None, pool], pool)
        return narrow(block, self.negatives, may_be_empty=self.may_be_empty)


@dataclass(frozen=True)
class _RowsViewByView(_Rows):
    """Pairs in which each view is compared only with itself, or only with the other; the rest of the matrix is skipped."""

    same: bool
    samples: int  # number of anchors per view
    first: int = 0  # index of the first of these anchors among all anchors

    @property
    def spans(self) -> list[tuple[int, int, int]]:
        n, bounds = len(self.anchor), range(0, self.samples * self.pairs.view_count, self.samples)
        cuts = [0, *(bound - self.first for bound in bounds if 0 < bound - self.first < n), n]
        runs = [(slice(start, end), self.candidates(slice(start, end))) for start, end in pairwise(cuts)]
        return [(rows.start, rows.stop, columns.stop - columns.start) for rows, columns in runs]

    def candidates(self, rows: slice) -> slice:
        own = (self.first + rows.start) // self.samples
        view = own if self.same else 1 - own
        # With two sides, explicit negatives follow the second side and belong to it.
        is_last = not self.same and view == 1
        return slice(view * self.samples, len(self.pool) if is_last else (view + 1) * self.samples)
