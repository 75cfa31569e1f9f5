"""Candidates that probably belong to the anchor's class, judged by similarity to other views of its sample (FNC)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from contrapose.distributed import gather, share_of_rows
from contrapose.pairs.kinds import AnyPairs
from contrapose.pairs.negatives import Choice
from contrapose.pairs.pairs import Pairs
from contrapose.pairs.similarities import Similarities
from contrapose.reduce import Block
from contrapose.reduce.unit import matmul, products, unit
from contrapose.validate import check_embeddings, check_width

_BLOCK = 2**24  # scores computed at a time


@dataclass(frozen=True, eq=False, repr=False)
class FalseNegatives(Choice):
    """Leaves out the false negatives found for each anchor. Their number varies, but the shape of `columns` does not."""

    columns: Tensor  # (n, top): indices of pool rows; unused entries hold `candidates`
    candidates: int
    may_leave_none = True

    @property
    def are_found(self) -> Tensor:
        """Which entries of `columns` are used, (n, top)."""
        return self.columns < self.candidates

    def similarities(self, pairs: AnyPairs) -> Tensor:
        """Return the anchors' similarities to the rows in `columns`, (n, top); values at unused entries are arbitrary."""
        rows = self.columns.clamp(max=self.candidates - 1)
        if isinstance(pairs, Similarities):
            return pairs.negative.gather(1, rows)
        return products(pairs.anchor, pairs.pool[rows])

    def __call__(self, block: Block) -> Block:
        """Return the block with fewer negatives."""
        columns = self.columns[block.rows]
        # One extra column, into which unused entries are written.
        drop = columns.new_zeros((len(columns), self.candidates + 1), dtype=torch.bool).scatter_(1, columns, True)
        drop = drop[:, : self.candidates][:, block.pool]
        return block.without(drop if block.columns is None else drop.gather(1, block.columns))

    def for_rows(self, rows: slice) -> FalseNegatives:
        """Return the same choice for a subset of the anchors."""
        return replace(self, columns=self.columns[rows])

    def __repr__(self) -> str:
        return "no_false_negatives()"


@torch.no_grad()
def find_false_negatives(pairs: AnyPairs, support: Tensor | None, *, top: int, threshold: float) -> FalseNegatives:
    """Return each anchor's `top` candidates from other samples with the highest scores, if these exceed `threshold`.

    The score of a candidate is its highest cosine similarity to the sample's views in `support` (S, m, d), or to the
    sample's anchors if `support` is None. All anchors of a sample have the same false negatives, provided that they have
    the same candidates. `torch.topk` breaks ties.
    """
    views = None if support is None else _support_rows(pairs, support)
    finder = _Finder(pairs, views, top, threshold)
    columns = torch.cat([finder.of_run(rows, columns) for rows, columns in pairs.candidate_runs])
    return FalseNegatives(columns, pairs.shape[1])


@dataclass(frozen=True, eq=False)
class _Finder:
    """Searches the pool in blocks of samples, so that only a small part of all scores exists at a time."""

    pairs: AnyPairs
    support: Tensor | None  # (S, m, d) unit vectors
    top: int
    threshold: float

    @property
    def samples(self) -> int:
        return self.pairs.shape[0] // self.pairs.view_count

    def of_run(self, anchors: slice, candidates: slice) -> Tensor:
        """Return the pool rows found for anchors that are compared with `candidates`, (anchors, top)."""
        pairs, count = self.pairs, (anchors.stop - anchors.start) // self.samples
        if not (isinstance(pairs, Pairs) and pairs.is_sharded):
            return self._of_samples(slice(0, self.samples), anchors.start, candidates).repeat(count, 1)
        own = share_of_rows(self.samples, pairs.group)  # each process searches for its part of the samples
        return gather(self._of_samples(own, anchors.start, candidates), group=pairs.group).repeat(count, 1)

    def _of_samples(self, samples: slice, first_anchor: int, candidates: slice) -> Tensor:
        """Return the pool rows found for some samples, (samples, top); `first_anchor` is the first anchor of sample 0."""
        blocks = _blocks(samples, candidates.stop - candidates.start)
        return torch.cat([self._of_block(rows, first_anchor, candidates) for rows in blocks])

    def _of_block(self, samples: slice, first_anchor: int, candidates: slice) -> Tensor:
        """Return the pool rows found for a block of samples, (b, top)."""
        anchors = slice(first_anchor + samples.start, first_anchor + samples.stop)
        score = self._scores(samples, candidates).masked_fill_(self._own_rows(anchors, candidates), -torch.inf)
        best = score.topk(min(self.top, score.shape[1]), dim=1)
        unused = self.pairs.shape[1]
        rows = torch.where(best.values > self.threshold, best.indices + candidates.start, unused)
        return pad(rows, (0, self.top - rows.shape[1]), value=unused)

    def _scores(self, samples: slice, candidates: slice) -> Tensor:
        """Return the scores of candidates for some samples, (b, c), as a new tensor."""
        pairs = self.pairs
        if self.support is None and isinstance(pairs, Similarities):
            each: Tensor = pairs.negative.unflatten(0, (pairs.view_count, self.samples))
            return each[:, samples, candidates].amax(0)
        assert pairs.pool is not None
        views = self.support
        if views is None:
            assert isinstance(pairs, Pairs)
            views = pairs.anchor.unflatten(0, (pairs.view_count, self.samples))
        pool = pairs.pool[candidates].T
        # View by view, so that a block takes the memory of two matrices instead of S.
        score = matmul(views[0, samples], pool)
        for view in views[1:]:
            torch.maximum(score, matmul(view[samples], pool), out=score)
        return score

    def _own_rows(self, anchors: slice, candidates: slice) -> Tensor:
        """Return which candidates belong to the anchor's own sample, (b, c)."""
        pairs = self.pairs
        if isinstance(pairs, Similarities):
            if pairs.same_id is None:
                return torch.zeros((), dtype=torch.bool, device=pairs.negative.device)
            return pairs.same_id[anchors, candidates]
        return pairs.anchor_id[anchors, None] == pairs.pool_id[candidates]


def _support_rows(pairs: AnyPairs, support: Tensor) -> Tensor:
    """Return the support views as unit vectors in the precision of the pool, or raise ValueError."""
    check_embeddings("support", support, 3, shapes={3: "(S, m, d)"})
    if pairs.pool is None:
        raise ValueError(
            "support: pairs made from similarity values have no rows to compare with `support`; "
            "expected None, or the result of two_views, views, cross, queue or bank"
        )
    samples = pairs.shape[0] // pairs.view_count
    if support.shape[1] != samples:
        raise ValueError(f"support: expected views of {samples} samples, (S, {samples}, d), got {tuple(support.shape)}")
    check_width("support", support, pairs.pool)
    return unit(support).to(pairs.pool)


def _blocks(samples: slice, candidates: int) -> Iterator[slice]:
    step = max(1, _BLOCK // candidates)
    return (slice(start, min(start + step, samples.stop)) for start in range(samples.start, samples.stop, step))
