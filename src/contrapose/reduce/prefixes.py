"""Prefixes of the same embeddings, which a nested loss reduces in the same way: one pass can compute the sums of all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from contrapose.reduce.block import Selection
    from contrapose.reduce.exponent import Exponent


@dataclass(frozen=True, eq=False)
class NestedPrefixes:
    """The embeddings whose prefixes are compared, and the sums that all prefixes share."""

    anchor: Tensor  # (n, d)
    pool: Tensor  # (m, d)
    bf16_anchor: Tensor | None  # as in `KernelInputs`
    widths: tuple[int, ...]
    computed: list[tuple[Exponent, Selection, tuple[Tensor, ...]]] = field(default_factory=list)

    def totals(self, phi: Exponent, selection: Selection) -> tuple[Tensor, ...] | None:
        """Return the log-sum-exps of each prefix, (n,) each, if a prefix has already requested them."""
        for known, chosen, values in self.computed:
            ids = chosen.anchor_id is selection.anchor_id and chosen.pool_id is selection.pool_id
            same_phi = known.times == phi.times and known.is_multiple_of(phi)
            if ids and chosen.runs == selection.runs and same_phi:
                return values
        return None


@dataclass(frozen=True, eq=False)
class Prefix:
    """One of several prefixes."""

    nested: NestedPrefixes
    index: int  # of its width
