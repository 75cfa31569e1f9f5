"""Choices of negatives that leave out likely false negatives: by another model (GISTEmbed), or by the positive's similarity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from contrapose.pairs.negatives import Choice
from contrapose.pairs.pairs import Pairs
from contrapose.reduce import Block, Ceiling
from contrapose.reduce.unit import matmul
from contrapose.validate import check_number


@dataclass(frozen=True, eq=False, repr=False)
class AtMost(Choice):
    """Leaves out candidates whose similarity to the anchor exceeds the anchor's threshold."""

    threshold: Tensor  # (n,), without gradient
    name: str  # for error messages
    may_leave_none = True

    def __call__(self, block: Block) -> Block:
        """Return the block with fewer negatives."""
        return block.without(block.similarity.detach() > self.threshold[block.rows, None])

    def ceiling(self) -> Ceiling:
        """Return the thresholds."""
        return Ceiling(self.threshold)

    def for_rows(self, rows: slice) -> AtMost:
        """Return the same choice for a subset of the anchors."""
        return replace(self, threshold=self.threshold[rows])

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, repr=False)
class SelfGuided(Choice):
    """Leaves out candidates that are more similar to the anchor than its positive by a margin."""

    margin: float
    relative: bool
    may_leave_none = True

    def __call__(self, block: Block) -> Block:
        """Raise ValueError: without positives there is no threshold."""
        raise ValueError(f"negatives: {self!r} needs the anchors' positives; pass it as `negatives=` of an objective")

    def of_positives(self, positives: Callable[[], Tensor]) -> AtMost:
        """Return the choice with the threshold of each anchor."""
        similarity = positives().detach()
        if not similarity.shape[1]:
            raise ValueError(
                f"negatives: {self!r} compares candidates with the anchor's positive, but one view of each sample has none: "
                "expected at least two views, such as views([z1, z2])"
            )
        return AtMost(limit_below(similarity.amax(1), -self.margin, relative=self.relative), repr(self))

    def __repr__(self) -> str:
        return f"self_guided(margin={self.margin}{', relative=True' if self.relative else ''})"


def limit_below(positive: Tensor, margin: float, *, relative: bool) -> Tensor:
    """Return similarities of positives minus the margin, or minus a fraction of their size: what exceeds it is left out."""
    return positive - margin * (positive.abs() if relative else 1.0)


@dataclass(frozen=True, eq=False, repr=False)
class Guided(Choice):
    """Leaves out candidates whose similarity to the anchor, according to the guide, exceeds the anchor's threshold."""

    anchor: Tensor  # (n, d): the guide's embeddings, without gradient
    pool: Tensor  # (m, d)
    threshold: Tensor  # (n,)
    name: str  # for error messages
    may_leave_none = True

    @torch.no_grad()
    def __call__(self, block: Block) -> Block:
        """Return the block with fewer negatives."""
        # Like the block itself, only this block of the guide's similarities is in memory at a time.
        similarity = matmul(self.anchor[block.rows], self.pool[block.pool].T)
        if block.columns is not None:
            similarity = similarity.gather(1, block.columns)
        return block.without(similarity > self.threshold[block.rows, None])

    def ceiling(self) -> Ceiling:
        """Return the thresholds and the guide."""
        return Ceiling(self.threshold, (self.anchor, self.pool))

    def for_rows(self, rows: slice) -> Guided:
        """Return the same choice for a subset of the anchors."""
        return replace(self, anchor=self.anchor[rows], threshold=self.threshold[rows])

    def check_shape(self, anchors: int, candidates: int) -> None:
        """Raise ValueError unless the guide's pairs have the same numbers of anchors and candidates."""
        if (len(self.anchor), len(self.pool)) != (anchors, candidates):
            raise ValueError(
                f"guide: expected pairs of the same samples, {anchors} anchors and {candidates} candidates, "
                f"got {len(self.anchor)} anchors and {len(self.pool)} candidates"
            )

    def __repr__(self) -> str:
        return self.name


def guided(guide: Pairs, *, margin: float = 0.0, relative: bool = False) -> Guided:
    """Leave out negatives that a guide, another model, finds too similar to the anchor: likely false negatives (GISTEmbed).

    `guide` holds pairs made by the same function from the guide's embeddings of the same samples, without gradient. A
    negative is left out if the guide's similarity exceeds g⁺ - `margin` or, if `relative`, g⁺ - `margin` · |g⁺|, where g⁺
    is the guide's similarity between the anchor and its positive (the most similar positive if there are several).

        nt_xent(two_views(z1, z2), negatives=guided(two_views(g1, g2), margin=0.1))

    An anchor may lose all its negatives, for example if its positive is mismatched. `nt_xent`, `clip`, `supcon`, `moco_v3`,
    `generalized_nt_xent`, `triplet` and `align_uniform` then give it no repulsion; other objectives raise ValueError.

    guide      pairs of the guide's embeddings
    margin     how much less similar than the positive a negative must be
    relative   whether the margin is a fraction of |g⁺|
    """
    if not isinstance(guide, Pairs):
        raise ValueError(
            f"guide: expected the result of two_views, views, cross, queue or bank, got {type(guide).__name__}"
        )
    check_number("margin", margin)
    with torch.no_grad():
        threshold = limit_below(guide.positives().amax(1), margin, relative=relative)
    name = f"guided(guide, margin={margin}{', relative=True' if relative else ''})"
    return Guided(guide.anchor.detach(), guide.pool.detach(), threshold, name)


def self_guided(*, margin: float = 0.1, relative: bool = False) -> SelfGuided:
    """Leave out negatives that are more similar to the anchor than its positive by a margin: likely false negatives.

    A negative is left out if s_k > s⁺ + `margin` or, if `relative`, s_k > s⁺ + `margin` · |s⁺|, where s⁺ is the anchor's
    similarity to its positive (the most similar positive if there are several). No other model is needed, unlike `guided`.
    The default is that of Qwen3-Embedding; `margin=-0.05, relative=True` is NV-Retriever's limit of 95 % of the positive's
    similarity.

        nt_xent(two_views(z1, z2), negatives=self_guided(margin=0.1))

    The threshold has no gradient. An anchor may lose all its negatives, for example if its positive is mismatched; the
    objectives that allow it are those of `guided`.

    margin     by how much a negative may be more similar than the positive; below 0: how much less similar it must be
    relative   whether the margin is a fraction of |s⁺|

    >>> from contrapose import nt_xent, from_similarities
    >>> positive, negatives = torch.tensor([0.5]), torch.tensor([[0.55, 0.7]])
    >>> round(nt_xent(from_similarities(positive, negatives), negatives=self_guided(margin=0.1)).item(), 4)  # without 0.7
    0.7444
    """
    check_number("margin", margin)
    return SelfGuided(float(margin), bool(relative))
