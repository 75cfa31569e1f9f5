"""Exact search for negatives in blocks of queries, with arguments that are checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from contrapose.mining.largest import largest
from contrapose.pairs.guided import limit_below
from contrapose.reduce.unit import matmul

# Similarities held at a time: 64 MiB in float32 on a CPU, 1 GiB on a GPU, which needs more work at a time.
_ON_CPU, _ON_GPU = 2**24, 2**28
NONE = -1  # the row of a document that does not exist
# Why similarities are left out, in this order
DROPPED = ("own", "excluded", "label", "margin", "max_similarity", "rank")


@dataclass(frozen=True, eq=False)
class Search:
    """The queries and documents of a search, and what to leave out.

    Embeddings are unit vectors, and no document is a copy of another one.
    """

    queries: Tensor
    documents: Tensor
    own: Tensor  # (q, p) rows of positives, without repetitions; -1: none
    others: Tensor  # (q, e) rows of other excluded documents
    labels: Tensor | None  # (m,)
    own_labels: Tensor | None  # (q, p) labels of the positives; -1, which no document has: none
    k: int
    margin: float | None
    relative: bool
    ranks: tuple[int, int | None]
    limits: tuple[float | None, float | None]

    def run(self, on_block: Callable[[int, int], None] | None) -> tuple[list[tuple[Tensor, ...]], dict[str, int]]:
        """Return indices, similarities and positives of each block of queries, and what was dropped."""
        held = _ON_CPU if self.queries.device.type == "cpu" else _ON_GPU
        step, total = max(1, held // len(self.documents)), len(self.queries)
        found, counts = list[tuple[Tensor, ...]](), list[Tensor]()
        for start in range(0, total, step):
            rows = slice(start, min(start + step, total))
            *block, dropped = self._block(rows)
            found.append(tuple(block))
            counts.append(dropped)
            if on_block is not None:
                on_block(rows.stop, total)
        return found, dict(zip(DROPPED, torch.stack(counts).sum(0).tolist(), strict=True))

    def _block(self, rows: slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return indices (b, k), similarities (b, k), those of the positives (b,), and the counts of what is dropped."""
        similarity = matmul(self.queries[rows], self.documents.T)
        own, others = self.own[rows], self.others[rows]
        positive = similarity.gather(1, own.clamp(min=0)).masked_fill_(own < 0, -torch.inf).amax(1)
        for left_out in (own, others):
            row, column = (left_out >= 0).nonzero(as_tuple=True)
            similarity[row, left_out[row, column]] = -torch.inf
        same_label = self._leave_out_labels(similarity, rows)
        within_margin, too_similar = self._leave_out_similar(similarity, positive)
        value, index, skipped = self._take_ranks(similarity, too_similar)
        dropped = [(own >= 0).sum(), (others >= 0).sum(), same_label, within_margin.sum()]
        dropped += [(too_similar - within_margin).sum(), skipped]
        return index, value, positive, torch.stack(dropped)

    def _leave_out_labels(self, similarity: Tensor, rows: slice) -> Tensor:
        """Leave out documents that have the label of one of the queries' positives; return how many, without those left out."""
        count = torch.zeros((), dtype=torch.long, device=similarity.device)
        if self.labels is None or self.own_labels is None:
            return count
        for label in self.own_labels[rows].unbind(1):
            same = self.labels == label[:, None]
            count += (same & (similarity > -torch.inf)).sum()
            similarity.masked_fill_(same, -torch.inf)
        return count

    def _leave_out_similar(self, similarity: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
        """Leave out documents that are too similar; return how many the margin leaves out, and how many in all, (b,) each."""
        _, most = self.limits
        within_margin = too_similar = torch.zeros(len(positive), dtype=torch.long, device=positive.device)
        if self.margin is not None:
            threshold = limit_below(positive, self.margin, relative=self.relative)
            # A query without a positive has no threshold.
            too_close = similarity > torch.where(positive == -torch.inf, torch.inf, threshold)[:, None]
            within_margin = too_similar = _count(too_close)
            similarity.masked_fill_(too_close, -torch.inf)
        if most is not None:
            too_close = similarity > most
            too_similar = within_margin + _count(too_close)
            similarity.masked_fill_(too_close, -torch.inf)
        return within_margin, too_similar

    def _take_ranks(self, similarity: Tensor, too_similar: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return similarities and indices of k negatives, (b, k) each, and the number of documents before the first rank."""
        first, last = self.ranks
        least, _ = self.limits
        # Documents that are too similar and left out already have the ranks before all others.
        skipped = (first - 1 - too_similar).clamp(min=0)
        value, index = largest(similarity, min(self.k + first - 1, similarity.shape[1]))
        passed = (value > -torch.inf).sum(1).minimum(skipped).sum()
        if value.shape[1] < self.k + first - 1:
            missing = (0, self.k + first - 1 - value.shape[1])
            value, index = pad(value, missing, value=-torch.inf), pad(index, missing, value=NONE)
        position = skipped[:, None] + torch.arange(self.k, device=skipped.device)
        value, index = value.gather(1, position), index.gather(1, position)
        if last is not None:
            value.masked_fill_(too_similar[:, None] + position >= last, -torch.inf)
        if least is not None:
            value.masked_fill_(value < least, -torch.inf)
        return value, index.masked_fill_(value == -torch.inf, NONE), passed


def _count(mask: Tensor) -> Tensor:
    """Return the number of true elements in each row."""
    # On a CPU, faster than a sum of bool, which becomes int64 first.
    return mask.view(torch.uint8).sum(1, dtype=torch.int32).long()
