"""Self-supervised against supervised (Lee): how far an image's mean is from its class's, and how tight the bounds are.

All of it is about averages of unit vectors, so vectors of other lengths are refused, not normalised. `draws` (R, n, d)
are the embeddings of R random augmentations of n images.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from contrapose.metrics.embeddings import class_sums, classes_of, units
from contrapose.validate import check_number, check_same_shape


def prototype_bias_means(
    draws: Tensor, labels: Tensor | None, *, rows: Tensor | None = None, row_labels: Tensor | None = None
) -> float:
    """mean_i ‖E_{T,X|y_i} f - E_T f(T(x_i))‖ with both expectations as means (Lee, Eq. 16).

    Class means are those of the draws, or of `rows`, augmented embeddings of more images.
    """
    image = units("draws", draws, 3, least=1, normalise=False).double().mean(0)
    if rows is None:
        row_labels, members = labels, image
    else:
        members = units("rows", rows, normalise=False)
    place, count = classes_of(
        "labels" if rows is None else "row_labels", row_labels, len(members), why="prototype bias"
    )
    prototype = class_sums(members, place, len(count)) / count[:, None]
    own = _own_class(labels, row_labels, len(image), why="prototype bias")
    return float(torch.linalg.vector_norm(prototype[own] - image, dim=1).mean())


def prototype_bias_single(z: Tensor, partner: Tensor) -> float:
    """mean_i ‖f(t_i(x'_i)) - f(t_i(x_i))‖, x'_i another image of the class, the same augmentation (Lee, Eq. 51).

    What his Fig. 3 shows. In expectation it is at least the bias itself. `evaluation.partners` chooses the x'.
    """
    z, partner = units("z", z, least=1, normalise=False), units("partner", partner, least=1, normalise=False)
    check_same_shape("partner", partner, "z", z)
    return float(torch.linalg.vector_norm((partner - z).double(), dim=1).mean())


@dataclass(frozen=True)
class Gap:
    """A bound's slack, mean over anchors, and the share of anchors outside its assumption."""

    gap: float
    outside: float


def attraction_gap(anchor: Tensor, draws: Tensor) -> Gap:
    """-E_T cos(f, f_T) less -cos(f, E_T f_T) (Lee, Theorem 4.4); assumed: fᵀE_T f_T ≥ 0.

    There the gap is fᵀμ(1/‖μ‖ - 1) ≥ 0, μ the mean of the draws.
    """
    f = units("anchor", anchor, least=1, normalise=False).double()
    draws = units("draws", draws, 3, least=1, normalise=False).double()
    if draws.shape[1:] != f.shape:
        raise ValueError(f"draws: expected (R, n, d) = (R, {len(f)}, {f.shape[1]}), got {tuple(draws.shape)}")
    mu = draws.mean(0)
    along = (f * mu).sum(1)
    gap = along / torch.linalg.vector_norm(mu, dim=1).clamp(min=1e-12) - along
    return Gap(float(gap.mean()), float((along < 0).double().mean()))


@dataclass(frozen=True)
class RepulsionGap(Gap):
    """The corrected bound's slack as `gap`, the printed one's beside it, and how many anchors break each."""

    printed: float
    broken: float  # share of anchors with a negative slack: 0 but for rounding
    printed_broken: float


def repulsion_gap(
    anchor: Tensor, labels: Tensor | None, rows: Tensor, row_labels: Tensor | None, *, alpha: float = 2.0
) -> RepulsionGap:
    """B/ν less max_{y'≠y} cos(f, μ_y') (Lee, Theorem 4.6), as printed and corrected.

        B = (1/α) log E_{x'} e^{α cos(f, f(x'))} + (log C)/α,     ν = min_{y'≠y} ‖μ_y'‖

    As printed it is false where every class mean is on the other side of f; the corrected bound is max(B, B/ν). Its
    assumption: max_{y'≠y} fᵀμ_y' ≥ 0. `rows` are the embeddings of all images, one draw each; every class weighs the
    same in E_{x'}, as in the theorem.
    """
    check_number("alpha", alpha, above=0.0)
    f = units("anchor", anchor, least=1, normalise=False).double()
    bank = units("rows", rows, normalise=False)
    place, count = classes_of("row_labels", row_labels, len(bank), why="the repulsion bound")
    own = _own_class(labels, row_labels, len(f), why="the repulsion bound")
    means = class_sums(bank, place, len(count)) / count[:, None]
    length = torch.linalg.vector_norm(means, dim=1)
    along = f @ means.T
    mine = torch.nn.functional.one_hot(own, len(count)).bool()
    largest = (along / length.clamp(min=1e-12)).masked_fill(mine, -math.inf).amax(1)
    nu = length.expand_as(along).masked_fill(mine, math.inf).amin(1)
    bound = _log_mean_exp(f, bank.double(), place, count, alpha) / alpha + math.log(len(count)) / alpha
    printed, corrected = bound / nu - largest, torch.maximum(bound, bound / nu) - largest
    outside = along.masked_fill(mine, -math.inf).amax(1) < 0
    shares = [float(x.double().mean()) for x in (outside, corrected < -1e-9, printed < -1e-9)]
    return RepulsionGap(float(corrected.mean()), shares[0], float(printed.mean()), shares[1], shares[2])


def _own_class(labels: Tensor | None, row_labels: Tensor | None, length: int, *, why: str) -> Tensor:
    """The place of each anchor's class among those of the rows, which are checked already."""
    classes_of("labels", labels, length, why=why, least=1)
    assert labels is not None
    assert row_labels is not None
    present = row_labels.unique()
    place = torch.searchsorted(present, labels.to(present)).clamp(max=len(present) - 1)
    if not bool((present[place] == labels.to(present)).all()):
        raise ValueError("labels: expected classes that are among row_labels")
    return place


def _log_mean_exp(f: Tensor, rows: Tensor, place: Tensor, count: Tensor, alpha: float) -> Tensor:
    """log of the mean over classes of the class means of e^{αs}, for each anchor, some anchors at a time."""
    weight = -(count[place] * len(count)).double().log()
    parts = f.split(max(1, 2**22 // len(rows)))
    return torch.cat([(alpha * (part @ rows.T) + weight).logsumexp(1) for part in parts])
