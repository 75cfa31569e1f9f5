"""Soft targets: how much each positive and each candidate should attract an anchor, the `targets=` of `soft_nt_xent`.

guide_targets(two_views(g1, g2), temperature=0.1)   softmax of another model's similarities (X-CLR, SoftCLIP)
guide_targets(guide, temperature=None)              proportional to a similarity, such as the number of shared tags
given_targets(weights)                              explicit weights, (n, m), dense or sparse
given_targets(scores, own, temperature=1.0)         softmax of a teacher's scores (distillation)
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from contrapose.pairs.kinds import AnyPairs
from contrapose.pairs.pairs import Pairs
from contrapose.pairs.ring import RingPairs
from contrapose.reduce import Block, GuideProducts, Scores
from contrapose.reduce.unit import matmul
from contrapose.validate import check_number, check_values

T = TypeVar("T", bound="Targets")


@dataclass(frozen=True, eq=False, kw_only=True)
class Targets(Scores):
    """A score of every anchor with its positives and candidates; made by `guide_targets` or `given_targets`.

    >>> isinstance(given_targets(torch.zeros(1, 1)), Targets)
    True
    """

    positive: Tensor  # (n, k): scores of the positives
    temperature: float | None  # of the softmax that makes weights from scores; None if scores are the weights

    @abstractmethod
    def fitted(self: T, anchors: int, positives: int, candidates: int) -> T:
        """Return the targets in full shape; raise ValueError if they are for other pairs."""

    def check_weights(self) -> None:
        """Raise ValueError for given weights below 0."""
        return

    def check_scores(self) -> None:
        """Raise ValueError for weights, which are no scores of a teacher."""
        return

    def for_rows(self: T, rows: slice) -> T:
        """Return the same targets for a subset of the anchors."""
        return replace(self, positive=self.positive[rows])

    def log_weights(self) -> LogWeights:
        """Return the logarithms of the weights of a block's entries."""
        return LogWeights(self)

    def positive_log_weights(self) -> Tensor:
        """Return the logarithms of the positives' weights, (n, k)."""
        return self.logarithm(self.positive)

    def guide_products(self) -> GuideProducts | None:
        """Return the products of a guide's rows, if the scores are such products that kernels can compute."""
        return None

    def logarithm(self, scores: Tensor) -> Tensor:
        """Return the logarithms of weights."""
        if self.temperature is not None:
            return scores / self.temperature
        return scores.clamp(min=0.0).log()


@dataclass(frozen=True, eq=False)
class LogWeights(Scores):
    """The logarithms of the weights that targets give to the entries of a block."""

    targets: Targets

    def __call__(self, block: Block) -> Tensor:
        """Return the logarithms, (b, c); -inf for no weight."""
        return self.targets.logarithm(self.targets(block))

    def for_rows(self, rows: slice) -> LogWeights:
        """Return the same weights for a subset of the anchors."""
        return LogWeights(self.targets.for_rows(rows))

    def guide_products(self) -> GuideProducts | None:
        """Return the products of a guide's rows from which the weights can be computed."""
        return self.targets.guide_products()


@dataclass(frozen=True, eq=False, kw_only=True)
class _OfGuide(Targets):
    """Similarities of a guide's embeddings, computed block by block."""

    anchor: Tensor  # (n, d)
    pool: Tensor  # (m, d)
    similarity: str

    @torch.no_grad()
    def __call__(self, block: Block) -> Tensor:
        scores = matmul(self.anchor[block.rows], self.pool[block.pool].T)
        return scores if block.columns is None else scores.gather(1, block.columns)

    def for_rows(self, rows: slice) -> _OfGuide:
        return replace(super().for_rows(rows), anchor=self.anchor[rows])

    def guide_products(self) -> GuideProducts | None:
        # Distances are differences of large numbers, for which the precision of kernels is too low.
        if self.similarity == "neg_euclid":
            return None
        return GuideProducts(self.anchor, self.pool, self.temperature, 1.0 if self.similarity == "cosine" else math.inf)

    def fitted(self, anchors: int, positives: int, candidates: int) -> _OfGuide:
        if (*self.positive.shape, len(self.pool)) != (anchors, positives, candidates):
            raise ValueError(
                f"targets: expected a guide's pairs of the same samples, made by the same function: {anchors} anchors with "
                f"{positives} positives and {candidates} candidates, got {len(self.anchor)} anchors with "
                f"{self.positive.shape[1]} positives and {len(self.pool)} candidates"
            )
        return self


@dataclass(frozen=True, eq=False, kw_only=True)
class _Dense(Targets):
    """Given scores of all candidates."""

    candidates: Tensor  # (n, m)
    scores_positives: bool = True  # whether the positives have numbers of their own

    def __call__(self, block: Block) -> Tensor:
        scores = self.candidates[block.rows, block.pool]
        return scores if block.columns is None else scores.gather(1, block.columns)

    def for_rows(self, rows: slice) -> _Dense:
        return replace(super().for_rows(rows), candidates=self.candidates[rows])

    def check_weights(self) -> None:
        _check_not_negative(self.temperature, self.candidates, self.positive)

    def check_scores(self) -> None:
        if not self.scores_positives:
            raise ValueError("targets: expected the scores of the positives too: given_targets(candidates, positives)")

    def fitted(self, anchors: int, positives: int, candidates: int) -> _Dense:
        own = _fitted_positives(self.positive, anchors, positives)
        return replace(self, positive=own, candidates=_expanded(self.candidates, anchors, candidates))


@dataclass(frozen=True, eq=False, kw_only=True)
class _Sparse(Targets):
    """Given weights of some candidates, row by row; all others have none."""

    bounds: Tensor  # (n + 1,) on the CPU: where each anchor's entries start and end
    columns: Tensor  # (entries,)
    values: Tensor  # (entries,)
    width: int

    def __call__(self, block: Block) -> Tensor:
        bounds = self.bounds[block.rows.start or 0 :][: len(block.similarity) + 1]
        entries = slice(int(bounds[0]), int(bounds[-1]))
        rows = torch.arange(len(bounds) - 1).repeat_interleave(bounds.diff()).to(self.columns.device)
        scores = self.values.new_zeros(len(bounds) - 1, self.width)
        scores = scores.index_put((rows, self.columns[entries]), self.values[entries])[:, block.pool]
        return scores if block.columns is None else scores.gather(1, block.columns)

    def for_rows(self, rows: slice) -> _Sparse:
        return replace(super().for_rows(rows), bounds=self.bounds[rows.start : rows.stop + 1])

    def check_weights(self) -> None:
        _check_not_negative(self.temperature, self.values, self.positive)

    def check_scores(self) -> None:
        raise ValueError(
            "targets: expected a score for every candidate, got a sparse tensor, in which missing entries have none; leave "
            "candidates without a score out of the pairs"
        )

    def fitted(self, anchors: int, positives: int, candidates: int) -> _Sparse:
        if (len(self.bounds) - 1, self.width) != (anchors, candidates):
            raise ValueError(_wrong_shape((len(self.bounds) - 1, self.width), anchors, candidates))
        return replace(self, positive=_fitted_positives(self.positive, anchors, positives))


def _expanded(given: Tensor, anchors: int, candidates: int) -> Tensor:
    if given.shape[0] not in (1, anchors) or given.shape[1] not in (1, candidates):
        raise ValueError(_wrong_shape(tuple(given.shape), anchors, candidates))
    return given.expand(anchors, candidates)


def _wrong_shape(given: tuple[int, ...], anchors: int, candidates: int) -> str:
    return (
        f"targets: expected one number for each of {anchors} anchors and {candidates} candidates, shape "
        f"({anchors}, {candidates}), got {given}"
    )


def _fitted_positives(own: Tensor, anchors: int, positives: int) -> Tensor:
    if own.shape[0] not in (1, anchors) or own.shape[1] not in (1, positives):
        raise ValueError(
            f"targets: positives: expected a number, or one for each anchor and positive, shape ({anchors}, {positives}), "
            f"got {tuple(own.shape)}"
        )
    return own.expand(anchors, positives)


def _check_not_negative(temperature: float | None, *weights: Tensor) -> None:
    for given in weights if temperature is None else ():
        check_values(
            given >= 0,
            lambda: (
                "targets: expected weights of at least 0, got one below 0; for a teacher's scores, pass "
                "given_targets a temperature"
            ),
        )


def matching_targets(pairs: AnyPairs, targets: Targets) -> Targets:
    """Return the targets with a score for each positive of the pairs; raise ValueError if they are for other pairs."""
    if not isinstance(targets, Targets):
        raise ValueError(
            f"targets: expected the result of guide_targets or given_targets, got {type(targets).__name__}"
        )
    if isinstance(pairs, RingPairs):
        raise ValueError(
            "targets: they are for all candidates, of which a process in a ring has its own only; gather the embeddings, and "
            "call .sharded() instead"
        )
    device = pairs.anchor.device if isinstance(pairs, Pairs) else pairs.negative.device
    if targets.positive.device != device:
        raise ValueError(
            f"targets: expected numbers on the device of the embeddings, {device}, got {targets.positive.device}"
        )
    (anchors, candidates), positives = pairs.shape, pairs.positive_count
    return targets.fitted(anchors, positives, candidates)


def guide_targets(guide: Pairs, *, temperature: float | None = 0.1) -> Targets:
    """Make soft targets from another model's similarities: p_ij = softmax_j(g_ij / τ_g) (X-CLR, SoftCLIP).

    `guide` holds pairs made by the same function from the guide's embeddings of the same samples, of any width and without
    gradient. Its similarities are computed block by block, like those of the loss, so that no n × m matrix is stored.

    Without a temperature, targets are proportional to the similarities themselves, and negative ones count as 0. With rows of
    tags, 0 or 1, and similarity="dot", that is the number of tags that two samples share.

        soft_nt_xent(two_views(z1, z2), targets=guide_targets(two_views(g1, g2), temperature=0.1))
        soft_nt_xent(two_views(z1, z2), targets=guide_targets(two_views(t, t, similarity="dot"), temperature=None))

    guide         pairs of the guide's embeddings
    temperature   τ_g; None: no softmax

    >>> from contrapose import soft_nt_xent, two_views
    >>> z, tags = torch.eye(3), torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])  # two samples have the same tag
    >>> targets = guide_targets(two_views(tags, tags, similarity="dot"), temperature=None)
    >>> round(soft_nt_xent(two_views(z, z), targets=targets, temperature=1.0).item(), 4)
    1.3493
    """
    if not isinstance(guide, Pairs):
        raise ValueError(
            f"guide: expected the result of two_views, views, cross, queue or bank, got {type(guide).__name__}"
        )
    _check_temperature(temperature)
    with torch.no_grad():
        positive = guide.positives(may_be_empty=True)
    return _OfGuide(
        positive=positive.detach(),
        temperature=temperature,
        anchor=guide.anchor.detach(),
        pool=guide.pool.detach(),
        similarity=guide.similarity,
    )


def given_targets(
    candidates: Tensor, positives: Tensor | float | None = None, *, temperature: float | None = None
) -> Targets:
    """Make soft targets from explicit numbers: weights, or a teacher's scores.

    Numbers are weights if there is no temperature; each anchor's weights are divided by their sum. With a temperature they are
    scores, and the weights are their softmax, as in distillation. Entries for candidates that are no negatives of an anchor, such
    as its own rows, are not used.

    candidates    (n, m), one row per anchor and one column per row of the pool, in its order; (1, m), (n, 1) and (1, 1) repeat
                  their numbers. Weights may be a sparse tensor (n, m), in which missing entries have no weight
    positives     numbers of the positives, (n, k), (n,), or one number; default: a weight of 1. Scores have no default
    temperature   of the softmax; None: no softmax

    >>> from contrapose import from_similarities
    >>> from contrapose.losses import soft_nt_xent
    >>> pairs = from_similarities(torch.tensor([0.5]), torch.tensor([[0.5, 0.5]]))
    >>> targets = given_targets(torch.tensor([[1.0, 0.0]]))  # the positive and the first candidate attract equally
    >>> round(soft_nt_xent(pairs, targets=targets).item(), 4)  # log 3
    1.0986
    """
    _check_temperature(temperature)
    if not isinstance(candidates, Tensor) or candidates.ndim != 2 or not candidates.is_floating_point():
        received = (
            f"{tuple(candidates.shape)} of {candidates.dtype}" if isinstance(candidates, Tensor) else type(candidates)
        )
        raise ValueError(f"candidates: expected floating point numbers (n, m), got {received}")
    if positives is None and temperature is not None:
        raise ValueError(
            "positives: expected the scores of the positives, (n, k), since there is a temperature; got None"
        )
    own = torch.as_tensor(1.0 if positives is None else positives, dtype=candidates.dtype, device=candidates.device)
    own = own.detach().reshape(1, 1) if own.ndim == 0 else own.detach()[:, None] if own.ndim == 1 else own.detach()
    if own.ndim != 2:
        raise ValueError(f"positives: expected a number, (n,) or (n, k), got {tuple(own.shape)}")
    candidates = candidates.detach()
    if candidates.layout == torch.strided:
        _check_finite(candidates=candidates, positives=own)
        return _Dense(
            positive=own, temperature=temperature, candidates=candidates, scores_positives=positives is not None
        )
    if temperature is not None:
        raise ValueError(
            "temperature: expected None, since missing entries of a sparse tensor are weights of 0, not scores"
        )
    entries = candidates.to_sparse_coo().coalesce()  # ordered by row
    rows, columns = entries.indices()
    _check_finite(candidates=entries.values(), positives=own)
    bounds = torch.searchsorted(rows, torch.arange(len(candidates) + 1, device=rows.device)).cpu()
    return _Sparse(
        positive=own,
        temperature=None,
        bounds=bounds,
        columns=columns,
        values=entries.values(),
        width=candidates.shape[1],
    )


def _check_temperature(temperature: float | None) -> None:
    if temperature is not None:
        check_number("temperature", temperature, above=0.0)


def _check_finite(**given: Tensor) -> None:
    for name, values in given.items():
        check_values(values.isfinite(), partial("{}: expected finite numbers, got NaN or infinity".format, name))
