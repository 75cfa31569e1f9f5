"""The same pairs made from the first coordinates of the embeddings only (Matryoshka)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from contrapose.pairs.kinds import AnyPairs
from contrapose.pairs.pairs import Pairs
from contrapose.pairs.ring import RingPairs
from contrapose.reduce import KernelInputs, NestedPrefixes, Prefix
from contrapose.reduce.unit import same_tensor, unit, unit_views


def width_of(pairs: AnyPairs) -> int:
    """Return the number of coordinates of the embeddings; raise ValueError if they have no prefixes."""
    if isinstance(pairs, RingPairs):
        return width_of(pairs.own)
    if not isinstance(pairs, Pairs):
        raise ValueError(
            "pairs: similarity values have no coordinates: expected the result of two_views, views or cross; a nested loss has "
            "similarities of its own for each prefix, so ask for the penalties of the loss of one prefix"
        )
    if pairs.similarity == "neg_euclid":
        raise ValueError("pairs: expected similarity='cosine' or 'dot' for prefixes of embeddings, got 'neg_euclid'")
    return pairs.anchor.shape[1] if pairs.positive_rows is None else pairs.positive_rows.shape[2]


def prefixes(pairs: AnyPairs, widths: Sequence[int]) -> Iterator[AnyPairs]:
    """Yield the pairs of the first `width` coordinates for each width, ascending."""
    nested = None
    if isinstance(pairs, Pairs):
        nested = NestedPrefixes(pairs.anchor, pairs.pool, pairs.kernel_inputs.bf16_anchor, tuple(widths))
    for index, width in enumerate(widths):
        short = prefix(pairs, width)
        if nested is not None and isinstance(short, Pairs):
            inputs = replace(short.kernel_inputs, prefix=Prefix(nested, index, short.anchor, short.pool))
            short = replace(short, kernel_inputs=inputs)
        yield short


def prefix(pairs: AnyPairs, width: int) -> AnyPairs:
    """Return the pairs of the embeddings' first `width` coordinates, normalised again if they are unit vectors."""
    if width == width_of(pairs):
        return pairs
    if isinstance(pairs, RingPairs):
        own = prefix(pairs.own, width)
        assert isinstance(own, Pairs)
        return replace(pairs, own=own)
    assert isinstance(pairs, Pairs)
    inputs = pairs.kernel_inputs
    if pairs.positive_similarity is not None:  # views are normalised and compared in one step
        views = pairs.anchor.unflatten(0, (pairs.view_count, -1))[..., :width]
        anchor, similarity, bf16 = unit_views(views)
        same = same_tensor(pairs.anchor, pairs.pool)
        return replace(
            pairs,
            anchor=anchor,
            positive_similarity=similarity,
            pool=anchor if same else unit(pairs.pool[:, :width]),
            kernel_inputs=KernelInputs(inputs.half_precision, bf16 if same else None, inputs.id_period),
        )
    assert pairs.positive_rows is not None
    full, cosine = pairs.positive_rows.shape[2], pairs.similarity == "cosine"
    anchor = _first(pairs.anchor, full, width, cosine=cosine)
    return replace(
        pairs,
        anchor=anchor,
        positive_rows=_first(pairs.positive_rows, full, width, cosine=cosine),
        pool=anchor if same_tensor(pairs.anchor, pairs.pool) else _first(pairs.pool, full, width, cosine=cosine),
        kernel_inputs=KernelInputs(inputs.half_precision, None, inputs.id_period),
    )


def _first(rows: Tensor, full: int, width: int, *, cosine: bool) -> Tensor:
    """Return the first `width` of each `full` coordinates: rows with two halves have two prefixes."""
    parts = [part[..., :width] for part in rows.split(full, dim=-1)]
    return torch.cat([unit(part) for part in parts] if cosine else parts, dim=-1)
