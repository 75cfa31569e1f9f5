"""`Look`: what the doctor measures at one batch, as plain numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Side:
    """The embeddings of one view, tower or column."""

    norm: float  # mean length of the rows
    norm_spread: float  # standard deviation of the lengths, divided by their mean
    column_error: float  # largest difference of a column's length from 1: 0 if normalised along the batch
    deviation: float  # standard deviation of unit vectors, 1 if spread evenly, 0 if collapsed (`feature_std`)
    rank: float  # effective rank of the unit vectors
    cosine: float  # mean similarity of two rows of different samples
    requires_grad: bool  # whether training can change these embeddings
    finite: bool  # whether all numbers are finite


@dataclass(frozen=True, kw_only=True)
class Action:
    """What the criterion does to the similarities of the batch, from its gradient with respect to each of them."""

    rows: float  # anchors that were asked about
    loss: float  # the loss of the rows that were looked at
    mismatched: float  # their loss if each positive is another sample: that of a network that has learned nothing
    ideal: float  # their loss if positives coincide, and all other rows are orthogonal
    rescaled: float  # their loss if each row's length is multiplied by a random factor between 0.5 and 2
    moved: float  # their loss if the same vector is added to all rows, which leaves distances as they are
    pull: float  # mean over anchors of the total pull on positives
    push: float  # mean over anchors of the total push on negatives
    negatives: float  # mean number of candidates that are pushed at all
    effective_negatives: float  # e^H of the shares of the push: the number of negatives that matter
    hardest_share: float  # share of the push on the hardest 1 % of the negatives
    temperature: float  # temperature at which NT-Xent would distribute the push in the same way; inf if evenly


@dataclass(frozen=True, kw_only=True)
class Look:
    """The numbers that one look at a batch measured; None where something could not be measured."""

    step: int  # calls of the criterion so far, from 1
    batch: int  # rows of each side
    rows: int  # rows of each side that were compared
    width: int  # dimensions of the embeddings
    sides: tuple[Side, ...]  # one for each view, tower or column
    has_labels: bool = False  # whether positives are rows of the same class
    positive: float | None = None  # mean similarity of positives
    negative: float | None = None  # mean similarity of rows of different samples, between the first two sides
    negative_spread: float | None = None  # standard deviation of these similarities
    retrieval: float | None = None  # share of anchors whose nearest candidate is a positive
    chance: float | None = None  # that share for random embeddings
    identical: float | None = None  # share of pairs whose two embeddings are equal
    gap: float | None = None  # distance between the means of the first two sides, divided by their joint deviation
    separable: float | None = None  # share of rows that are nearer to the mean of their own side than to the other's
    order: float | None = None  # how much more similar near rows of the batch are than in random orders, in deviations
    duplicates: tuple[tuple[int, int], ...] = ()  # rows of different samples with equal embeddings
    duplicate_share: float = 0.0  # share of rows that have a duplicate
    twins: tuple[tuple[int, int], ...] = ()  # rows of different samples that are as similar as positives are
    twin_share: float = 0.0  # share of rows that have a twin
    index_groups: tuple[int, int] | None = None  # different ids in the batch, and their number of rows
    label_groups: tuple[int, int] | None = None  # different labels, and the number of rows with a label of their own
    precision_error: float | None = None  # relative error of the gradient through low precision inside the criterion
    scales: Mapping[str, float] | None = None  # learned numbers of the criterion and of its arguments
    bounds: Mapping[str, tuple[float | None, float | None]] | None = None  # lower and upper bounds of these numbers
    towers: Mapping[str, float] | None = None  # sum of the norms of the parameters of each part of the model
    ranks: Mapping[str, float] | None = None  # measurements across processes
    action: Action | None = None  # what the criterion does; None if it could not be asked
    not_asked: str = ""  # why the criterion was not asked

    def as_json(self) -> dict[str, Any]:
        """Return the numbers for a JSON file, without those that were not measured; infinite ones as None."""
        found = {name: value for name, value in asdict(self).items() if value not in (None, (), "")}
        return {name: _finite(value) for name, value in found.items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Look:
        """Return the look that `as_json` wrote."""
        known = {field.name for field in fields(cls)}
        given = {name: value for name, value in values.items() if name in known}
        given["sides"] = tuple(Side(**_numbers(side)) for side in given["sides"])
        if given.get("action"):
            given["action"] = Action(**_numbers(given["action"]))
        for name in ("duplicates", "twins"):
            given[name] = tuple((int(a), int(b)) for a, b in given.get(name, ()))
        return cls(**given)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_finite(inner) for inner in value]
    return value


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: math.inf if value is None else value for name, value in values.items()}
