"""Input checks that all metrics share: unit vectors and class labels."""

from __future__ import annotations

import warnings
from functools import partial

import torch
from torch import Tensor

from contrapose.pairs import Pairs, unit
from contrapose.pairs.ids import views_in_order
from contrapose.validate import check_embeddings, check_index

_LENGTH_TOLERANCE = 2e-2  # the length of a vector normalised in bf16 differs from 1 by less than 1 %


def unit_vectors(name: str, z: Tensor, *dims: int, min_count: int = 2, normalise: bool = True) -> Tensor:
    """Return `z` as unit vectors, detached, in float32 or better.

    Vectors of other lengths are normalised with a warning. With `normalise=False` they are rejected instead, for metrics
    whose averages would depend on the lengths. Zero and non-finite vectors are always rejected.
    """
    check_embeddings(name, z, *(dims or (2,)))
    if z.shape[-2] < min_count:
        raise ValueError(f"{name}: expected at least {min_count} embeddings, got {z.shape[-2]}")
    z = z.detach()
    z = z.float() if z.dtype in (torch.float16, torch.bfloat16) else z
    # In float64, where the squares of float32 coordinates do not overflow.
    length = torch.linalg.vector_norm(z, dim=-1, dtype=torch.float64)
    # The length is NaN or infinite if any coordinate is, so only n values are checked instead of n · d.
    if not bool(length.isfinite().all()):
        index = (~length.flatten().isfinite()).nonzero()[0].item()
        raise ValueError(f"{name}: embedding {index} is not finite")
    if bool((length < 1e-12).any()):
        index = (length.flatten() < 1e-12).nonzero()[0].item()
        raise ValueError(f"{name}: embedding {index} is zero and has no direction")
    low, high = float(length.min()), float(length.max())
    if max(1 - low, high - 1) > _LENGTH_TOLERANCE:
        problem = f"{name}: expected unit vectors, got lengths from {low:.3g} to {high:.3g}"
        if not normalise:
            raise ValueError(f"{problem}; normalise them first with contrapose.pairs.unit")
        # stacklevel 3 points at the line that called the metric.
        warnings.warn(
            f"{problem}; the metric normalises them (call contrapose.pairs.unit first to avoid this warning)",
            stacklevel=3,
        )
    # Even nearly unit vectors are normalised: a length of 1.01 would bias squared distances by 2 %.
    return unit(z)


def class_indices(
    name: str, labels: Tensor | None, length: int, *, purpose: str, min_classes: int = 2
) -> tuple[Tensor, Tensor]:
    """Return the class of each embedding as an index 0…C-1, shape (n,), and the size of each class, shape (C,).

    Labels may have gaps: classes are numbered in the order of their labels. `purpose` names the metric in error messages.
    """
    if labels is None:
        raise ValueError(f"{name}: {purpose} needs a label for each embedding, got None")
    check_index(name, labels, length)
    present, class_index, class_size = labels.unique(return_inverse=True, return_counts=True)
    if len(present) < min_classes:
        raise ValueError(
            f"{name}: {purpose} needs at least {min_classes} classes, but all labels are {int(present[0])}"
        )
    return class_index, class_size


def class_sums(z: Tensor, class_index: Tensor, classes: int) -> Tensor:
    """Return the sum of each class's vectors, shape (C, d), in float64.

    In float32, a sum of 50,000 unit vectors loses several digits, and metrics subtract such sums from each other.
    """
    return z.new_zeros((classes, z.shape[1]), dtype=torch.float64).index_add_(0, class_index, z.double())


def all_pairs(z: Tensor) -> Pairs:
    """Return pairs in which every vector is an anchor and all other vectors are its negatives."""
    index = torch.arange(len(z), device=z.device)
    return Pairs(
        anchor=z,
        positive_rows=z[:, None],
        pool=z,
        # A pool row with the anchor's id is not a negative, so unique ids exclude exactly the self-pairs.
        anchor_id=index,
        pool_id=index,
        view_ids=partial(views_in_order, 1, len(z), z.device),
    )
