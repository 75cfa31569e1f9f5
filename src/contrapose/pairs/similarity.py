"""How embeddings are compared: rows whose products are their similarities."""

from __future__ import annotations

import math
from functools import reduce

import torch
from torch import Tensor

from contrapose.reduce.hardware import is_half
from contrapose.reduce.unit import units
from contrapose.validate import check_choice

# cosine: product of unit vectors, between -1 and 1; dot: z · z' without normalisation; neg_euclid: -‖z - z'‖²
SIMILARITIES = ("cosine", "dot", "neg_euclid")


def comparable_rows(similarity: str, anchor: Tensor, pool: Tensor) -> tuple[Tensor, Tensor]:
    """Return anchors and pool as rows, in float32 or better, such that the product of two rows is their similarity."""
    check_choice("similarity", similarity, *SIMILARITIES)
    if similarity == "cosine":
        anchor, pool = units(anchor, pool)
        return anchor, pool
    # Keyed by identity, so that the same tensor passed twice stays one tensor: reductions check for this.
    raw = {key: z.float() if is_half(z) else z for key, z in {id(z): z for z in (anchor, pool)}.items()}
    dtype = reduce(torch.promote_types, (z.dtype for z in raw.values()))
    raw = {key: z.to(dtype) for key, z in raw.items()}
    anchor, pool = raw[id(anchor)], raw[id(pool)]
    return (anchor, pool) if similarity == "dot" else _distance_rows(anchor, pool)


def _distance_rows(anchor: Tensor, pool: Tensor) -> tuple[Tensor, Tensor]:
    """Return [√2 a, -‖a‖², 1] and [√2 b, 1, -‖b‖²], whose products are 2 a · b - ‖a‖² - ‖b‖² = -‖a - b‖²."""
    # Distances do not depend on the origin. With the origin at the rows' mean, ‖a‖² is small, and little is lost to cancellation.
    middle = pool.detach().flatten(0, -2).mean(0)
    anchor, pool = anchor - middle, pool - middle
    length, pool_length = (-z.square().sum(-1, keepdim=True) for z in (anchor, pool))
    return (
        torch.cat([math.sqrt(2) * anchor, length, torch.ones_like(length)], -1),
        torch.cat([math.sqrt(2) * pool, torch.ones_like(pool_length), pool_length], -1),
    )
