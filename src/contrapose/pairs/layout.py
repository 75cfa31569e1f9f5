"""How anchors and their candidates are laid out: what `Pairs` and `Similarities` have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any

from contrapose.reduce.matrix_blocks import Runs


@dataclass(frozen=True, eq=False, kw_only=True)
class Layout(ABC):
    """Views, stored rows, and which rows are compared with each other. Anchors are ordered view by view."""

    view_count: int = 1  # number of views in which the anchors are laid out: n = view_count · samples
    global_views: int = 0  # multi-crop: number of global crops, which come first; only they have keys; 0: no multi-crop
    between_views_only: bool = False  # whether no row of an anchor's own view is its negative, as in `cross`
    stored: int = 0  # number of candidates from a queue or a bank, which come first
    has_keys: bool = False  # whether the pool also has keys of the batch, as with `queue(…, keys=True)`
    detached: bool = False  # whether positives, and stored rows or keys, carry no gradient
    similarity: str = "cosine"  # the similarity: cosine, dot or neg_euclid; only cosine is within [-1, 1]

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Number of anchors, number of candidates."""

    @property
    @abstractmethod
    def positive_count(self) -> int:
        """Number of positives of each anchor; 0 with a single view."""

    def check_positives(self) -> None:
        """Raise ValueError if anchors have no positives."""
        if not self.positive_count:
            raise ValueError(
                "pairs: one view of each sample has no positives: expected at least two views, such as views([z1, z2]), "
                "or a loss that finds positives by labels: supcon(views([z]), labels=y)"
            )

    @property
    def has_views(self) -> bool:
        """Whether the pool is the batch itself in several views, where each view is compared with itself and the others."""
        return self.view_count > 1 and not self.stored and not self.between_views_only

    @property
    def is_one_sample(self) -> bool:
        """Whether views of a single sample are compared with its keys, and with nothing else."""
        return self.detached and not self.stored and self.shape == (self.view_count, self.key_views)

    @property
    def key_views(self) -> int:
        """Number of views from which the keys, or other positives, come."""
        return self.global_views or self.view_count

    @property
    def is_symmetric(self) -> bool:
        """Whether two sides are compared with each other only, in both directions."""
        return self.between_views_only and self.view_count == 2

    @property
    def candidate_runs(self) -> Runs:
        """The (anchors, candidates) that are compared: all with all, or each of two sides with the other."""
        (n, m), half = self.shape, self.shape[0] // 2
        if not self.is_symmetric:
            return [(slice(0, n), slice(0, m))]
        return [(slice(0, half), slice(half, m)), (slice(half, n), slice(0, half))]

    def layout(self) -> dict[str, Any]:
        """Return these fields by name, for other pairs that are laid out in the same way."""
        return {field.name: getattr(self, field.name) for field in fields(Layout)}
