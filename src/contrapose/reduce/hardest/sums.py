"""Sums over exactly k hardest negatives per anchor: those above the threshold, and a share of those that tie with it.

Kernels compute sums and counts without the ties and with the ties. The share of ties that makes up k comes from these counts:
the kernel that found the threshold may have rounded its products differently, and put a near tie on the other side.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from contrapose.reduce.request import LOG2E, TOTAL, TWO_TOTALS, KernelRequest

# Planes that kernels store: sums of e^φ above the ties and including the ties, counts of both, second sums of e^φ s or e^φ2,
# and the largest exponent in base 2.
ABOVE, WITH_TIES, ABOVE_COUNT, COUNT, SECOND_ABOVE, SECOND_WITH_TIES, LARGEST = range(7)


def plane_count(request: KernelRequest) -> int:
    """Return the number of planes that kernels store for a request."""
    return LARGEST + 1 if not request.phi.is_bounded else SECOND_WITH_TIES + 1 if request.sums != TOTAL else COUNT + 1


class HardestSums:
    """Adds up the sums that kernels stored, block by block, and turns them into statistics."""

    def __init__(self, request: KernelRequest, like: Tensor) -> None:
        self.request = request
        self.totals = like.new_zeros((plane_count(request), len(like)), dtype=torch.float32)
        if not request.phi.is_bounded:
            self.totals[LARGEST] = -torch.inf

    def add(self, anchors: slice, parts: Tensor) -> None:
        """Add a block's sums of some anchors, (planes, tiles, anchors)."""
        totals = self.totals[:, anchors]
        if self.request.phi.is_bounded:
            totals += parts.sum(1)
            return
        largest = torch.maximum(totals[LARGEST], parts[LARGEST].amax(0))
        # An anchor without negatives so far: -inf - (-inf) would be NaN.
        finite = largest.masked_fill(largest == -torch.inf, 0.0)
        earlier, weight = torch.exp2(totals[LARGEST] - finite), torch.exp2(parts[LARGEST] - finite)
        totals[ABOVE_COUNT : COUNT + 1] += parts[ABOVE_COUNT : COUNT + 1].sum(1)
        for first in (ABOVE, SECOND_ABOVE) if self.request.sums != TOTAL else (ABOVE,):
            both = slice(first, first + 2)
            totals[both] = totals[both] * earlier + (parts[both] * weight).sum(1)
        totals[LARGEST] = largest

    def results(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-sum-exps, the second statistic and the weight of ties, (n,) each."""
        request, totals = self.request, self.totals
        assert request.hardest is not None
        _, k = request.hardest
        ties = (totals[COUNT] - totals[ABOVE_COUNT]).clamp(min=1)
        tie_weight = ((k - totals[ABOVE_COUNT]) / ties).clamp(0, 1)
        total = torch.lerp(totals[ABOVE], totals[WITH_TIES], tie_weight)
        largest = LOG2E * request.phi.shift if request.phi.is_bounded else totals[LARGEST]
        lse = (total.log2() + largest) * math.log(2)
        # Zero for an anchor without negatives, as in the kernels; NaN is kept.
        inverse = torch.where(total == 0, 0.0, 1 / total)
        if request.sums == TOTAL:
            return lse, inverse, tie_weight
        second = torch.lerp(totals[SECOND_ABOVE], totals[SECOND_WITH_TIES], tie_weight)
        if request.sums == TWO_TOTALS:
            return lse, second.log() + request.shift2, tie_weight
        return lse, second * inverse, tie_weight
