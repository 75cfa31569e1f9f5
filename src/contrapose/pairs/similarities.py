"""`Similarities`: similarity values instead of `Pairs`, for gradients with respect to similarities."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from contrapose.pairs.layout import Layout
from contrapose.pairs.negatives import Choice, Negatives, choices_of, narrow
from contrapose.reduce import Block, KernelInputs, Statistic, reduce_rows


@dataclass(frozen=True, eq=False, kw_only=True)
class Similarities(Layout):
    """Similarities of n anchors to their k positives and m candidates, with any known ids and views of the candidates."""

    positive: Tensor  # (n, k)
    negative: Tensor  # (n, m)
    same_id: Tensor | None = (
        None  # (n, m) bool: true where a candidate is not a negative; None if all candidates are negatives
    )
    anchor_id: Tensor | None = None  # (n,)
    pool_id: Tensor | None = None  # (m,)
    pool: Tensor | None = None  # (m, d): the candidates, if they are known, without gradient
    anchor_view: Tensor | None = None  # (n,); None if views are unknown
    pool_view: Tensor | None = None  # (m,)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of anchors, number of candidates."""
        return self.negative.shape[0], self.negative.shape[1]

    @property
    def positive_count(self) -> int:
        """Number of positives of each anchor."""
        return self.positive.shape[1]

    def positives(self, *, may_be_empty: bool = False) -> Tensor:
        """Return the similarities to the positives, (n, k); k may be 0 only if `may_be_empty`."""
        if not may_be_empty:
            self.check_positives()
        return self.positive

    def positive_distances(self) -> Tensor:
        """Return ‖z - z⁺‖² = 2 - 2s of unit vectors, (n, k); in float32, distances below 1e-3 are lost to rounding."""
        return 2 - 2 * self.positives()

    def reduce(
        self, *statistics: Statistic, negatives: Negatives = None, may_be_empty: bool = False
    ) -> tuple[Tensor, ...]:
        """Return statistics of each anchor's negatives, (n,) each.

        With `may_be_empty` a choice may leave anchors without negatives: their log-sum-exp is -inf, their expectation 0.
        """
        chosen = choices_of(negatives, self.shape, lambda: self.positive)
        return reduce_rows(_GivenRows(self, chosen, may_be_empty), *statistics)

    def sum(self, statistic: Statistic, *, negatives: Negatives = None) -> Tensor:
        """Return the sum of a statistic over all anchors, a scalar."""
        return self.reduce(statistic, negatives=negatives)[0].sum()

    def between_views(self) -> Iterator[tuple[int, int, Similarities]]:
        """Yield (v, w, view v compared with view w) for all ordered pairs of views; the whole, once, if views are unknown."""
        if not self.has_views:
            yield 0, 1, self
            return
        n, m = self.shape[0] // self.view_count, self.shape[1] // self.key_views
        for v in range(self.view_count):
            for w in range(self.key_views):
                if v != w:
                    rows, columns = slice(v * n, v * n + n), slice(w * m, w * m + m)
                    # Positives are ordered by how many views they follow the anchor's view, cyclically. A local crop's
                    # view has no keys, so its positives start with the first view.
                    pointer = (w - v) % self.key_views - 1 if v < self.key_views else w
                    yield (
                        v,
                        w,
                        Similarities(
                            positive=self.positive[rows, pointer : pointer + 1],
                            negative=self.negative[rows, columns],
                            same_id=None if self.same_id is None else self.same_id[rows, columns],
                            anchor_id=None if self.anchor_id is None else self.anchor_id[rows],
                            pool_id=None if self.pool_id is None else self.pool_id[columns],
                            pool=None if self.pool is None else self.pool[columns],
                            anchor_view=None if self.anchor_view is None else self.anchor_view[rows],
                            pool_view=None if self.pool_view is None else self.pool_view[columns],
                            detached=self.detached,
                            similarity=self.similarity,
                        ),
                    )


@dataclass(frozen=True)
class _GivenRows:
    """Similarities with a choice of negatives, in the form that `reduce` reads."""

    values: Similarities
    negatives: tuple[Choice, ...]
    may_be_empty: bool
    anchor: None = None
    pool: None = None
    selection: None = None
    kernel_inputs: KernelInputs = field(default_factory=KernelInputs)

    @property
    def spans(self) -> list[tuple[int, int, int]]:
        return [(0, *self.values.shape)]

    def similarity(self, rows: slice, *, bf16: bool = False) -> Tensor:
        return self.values.negative[rows]

    def block(self, rows: slice, similarity: Tensor) -> Block:
        values = self.values
        same_id = None if values.same_id is None else values.same_id[rows]
        view = None if values.anchor_view is None else values.anchor_view[rows, None]
        pool_view = None if values.pool_view is None else values.pool_view[None]
        return narrow(Block(rows, similarity, same_id, view, pool_view), self.negatives, may_be_empty=self.may_be_empty)


def from_similarities(pos: Tensor, neg: Tensor) -> Similarities:
    """Make pairs from similarity values, pos (n,) or (n, k) and neg (n, m), for gradients with respect to similarities.

    pos   similarities of n anchors to their positives, (n,) or (n, k)
    neg   similarities of the anchors to their negatives, (n, m)

    >>> from contrapose.losses import nt_xent
    >>> s = torch.tensor([[0.5, 0.0, -0.5]], requires_grad=True)
    >>> nt_xent(from_similarities(torch.tensor([0.9]), s), temperature=0.5).backward()
    >>> s.grad.argmax().item()  # the hardest negative is pushed most
    0
    """
    for name, values in (("pos", pos), ("neg", neg)):
        if not isinstance(values, Tensor) or not values.is_floating_point():
            received = values.dtype if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(f"{name}: expected a floating point tensor of similarities, got {received}")
    pos = pos[:, None] if pos.ndim == 1 else pos
    if pos.ndim != 2 or neg.ndim != 2 or len(pos) != len(neg) or 0 in (*pos.shape, *neg.shape):
        raise ValueError(
            f"pos, neg: expected shapes (n,) or (n, k), and (n, m), got {tuple(pos.shape)} and {tuple(neg.shape)}"
        )
    half = (torch.float16, torch.bfloat16)
    return Similarities(
        positive=pos.float() if pos.dtype in half else pos, negative=neg.float() if neg.dtype in half else neg
    )
