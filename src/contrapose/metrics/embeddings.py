"""What a metric is given: unit vectors and labels, checked in one place."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from contrapose.pairs import Pairs, unit
from contrapose.validate import check_embeddings, check_index

_NEARLY = 2e-2  # how far from 1 the length of a unit vector may be, after bf16


def units(name: str, z: Tensor, *dims: int, least: int = 2, normalise: bool = True) -> Tensor:
    """`z` as unit vectors, without gradient, in float32 or better.

    Vectors of another length are normalised with a warning, or refused where an average of them would mislead. A vector
    without direction, and one that is not finite, is refused always.
    """
    check_embeddings(name, z, *(dims or (2,)))
    if z.shape[-2] < least:
        raise ValueError(f"{name}: expected at least {least} embeddings, got {z.shape[-2]}")
    z = z.detach()
    z = z.float() if z.dtype in (torch.float16, torch.bfloat16) else z
    length = torch.linalg.vector_norm(z, dim=-1)
    if not bool(length.isfinite().all()):
        place = (~length.flatten().isfinite()).nonzero()[0].item()
        raise ValueError(f"{name}: embedding {place} is not finite")
    if bool((length < 1e-12).any()):
        place = (length.flatten() < 1e-12).nonzero()[0].item()
        raise ValueError(f"{name}: embedding {place} is zero and has no direction")
    low, high = float(length.min()), float(length.max())
    if max(1 - low, high - 1) > _NEARLY:
        found = f"{name}: expected unit vectors, got lengths from {low:.3g} to {high:.3g}"
        if not normalise:
            raise ValueError(f"{found}; averages of them would mislead, so normalise them first")
        warnings.warn(f"{found}; they are normalised here", stacklevel=3)
    return unit(z)


def classes_of(name: str, labels: Tensor | None, length: int, *, why: str, least: int = 2) -> tuple[Tensor, Tensor]:
    """(class of each embedding as 0…C-1, members of each class); at least `least` classes."""
    if labels is None:
        raise ValueError(f"{name}: {why} needs a label for each embedding, got none")
    check_index(name, labels, length)
    present, place, count = labels.unique(return_inverse=True, return_counts=True)
    if len(present) < least:
        raise ValueError(f"{name}: {why} needs at least {least} classes, and all labels are {int(present[0])}")
    return place, count


def class_sums(z: Tensor, place: Tensor, classes: int) -> Tensor:
    """(C, d) in float64: the sum of each class's vectors."""
    return z.new_zeros((classes, z.shape[1]), dtype=torch.float64).index_add_(0, place, z.double())


def among(z: Tensor) -> Pairs:
    """Every vector against all the others."""
    index = torch.arange(len(z), device=z.device)
    return Pairs(
        anchor=z,
        positive_rows=z[:, None],
        pool=z,
        anchor_id=index,
        pool_id=index,
        view_ids=lambda: (torch.zeros_like(index), torch.zeros_like(index)),
    )
