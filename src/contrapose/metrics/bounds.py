"""Self-supervised against supervised contrastive learning (Lee): prototype bias and the slack of the bounds.

All functions here average unit vectors, so vectors of other lengths are rejected, not normalised. `draws` (R, n, d) are
the embeddings of R random augmentations of n images.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from contrapose.metrics.embeddings import class_indices, class_sums, unit_vectors
from contrapose.validate import check_number, check_same_shape


def prototype_bias_means(
    draws: Tensor, labels: Tensor | None, *, rows: Tensor | None = None, row_labels: Tensor | None = None
) -> float:
    """Return mean_i ‖E_{T,X|y_i} f - E_T f(T(x_i))‖ with both expectations estimated by means (Lee, Eq. 16).

    Class means are computed from `draws`, or from `rows` (m, d) with `row_labels` if given: augmented embeddings of more images.

    draws        embeddings (D, n, d) of D random views of n images
    labels       classes of the images (n,)
    rows         embeddings (m, d) for the class means; default: the draws
    row_labels   classes of the rows (m,)
    """
    image_mean = unit_vectors("draws", draws, 3, min_count=1, normalise=False).double().mean(0)
    if rows is None:
        row_labels, members = labels, image_mean
    else:
        members = unit_vectors("rows", rows, normalise=False)
    labels_name = "labels" if rows is None else "row_labels"
    class_index, class_size = class_indices(labels_name, row_labels, len(members), purpose="prototype bias")
    prototype = class_sums(members, class_index, len(class_size)) / class_size[:, None]
    own = _own_class(labels, row_labels, len(image_mean), purpose="prototype bias")
    return float(torch.linalg.vector_norm(prototype[own] - image_mean, dim=1).mean())


def prototype_bias_single(z: Tensor, partner: Tensor) -> float:
    """Return mean_i ‖f(t_i(x'_i)) - f(t_i(x_i))‖, where x'_i is another image of x_i's class (Lee, Eq. 51).

    Both images get the same augmentation t_i. Lee's Fig. 3 shows this one-sample estimate. By Jensen's inequality, its
    expectation is at least the bias itself. `evaluation.partners` chooses the images x'.

    z         embeddings (n, d)
    partner   embeddings (n, d) of the images x'
    """
    return float(prototype_deviations(z, partner).mean())


def prototype_deviations(z: Tensor, partner: Tensor) -> Tensor:
    """Return ‖f(t_i(x'_i)) - f(t_i(x_i))‖ of each image, (n,) in float64; `prototype_bias_single` is their mean.

    z         embeddings (n, d)
    partner   embeddings (n, d) of the images x'
    """
    z = unit_vectors("z", z, min_count=1, normalise=False)
    partner = unit_vectors("partner", partner, min_count=1, normalise=False)
    check_same_shape("partner", partner, "z", z)
    deviations: Tensor = torch.linalg.vector_norm((partner - z).double(), dim=1)
    return deviations


def standard_error(values: Tensor) -> float:
    """Return the standard error of the mean of independent values (n,); NaN for a single value.

    values   one number per anchor
    """
    return float(values.double().std() / math.sqrt(len(values))) if len(values) > 1 else math.nan


@dataclass(frozen=True)
class Gap:
    """The slack of a bound, averaged over anchors, and how often the bound's assumption fails."""

    gap: float  # mean slack: bound minus bounded quantity
    outside: float  # fraction of anchors that violate the assumption
    error: float  # standard error of the mean over anchors; NaN for one anchor


def attraction_gap(anchor: Tensor, draws: Tensor) -> Gap:
    """Return the slack of Lee's Theorem 4.4: -cos(f, E_T f_T) ≤ -E_T cos(f, f_T), which assumes fᵀE_T f_T ≥ 0.

    The slack is fᵀμ(1/‖μ‖ - 1), where μ is the mean of the draws. `anchor` is (n, d).

    anchor   embeddings (n, d)
    draws    embeddings (D, n, d) of D random views of the same images
    """
    f = unit_vectors("anchor", anchor, min_count=1, normalise=False).double()
    draws = unit_vectors("draws", draws, 3, min_count=1, normalise=False).double()
    if draws.shape[1:] != f.shape:
        raise ValueError(f"draws: expected (R, n, d) = (R, {len(f)}, {f.shape[1]}), got {tuple(draws.shape)}")
    mu = draws.mean(0)
    dot = (f * mu).sum(1)
    # The mean can vanish, although no single draw does: opposite draws cancel.
    gap = dot / torch.linalg.vector_norm(mu, dim=1).clamp(min=1e-12) - dot
    return Gap(gap=float(gap.mean()), outside=float((dot < 0).double().mean()), error=standard_error(gap))


@dataclass(frozen=True)
class RepulsionGap(Gap):
    """The slack of the corrected bound (`gap`) and of the published bound, and how often each bound is violated."""

    printed: float  # mean slack of the published bound
    broken: float  # fraction of anchors that violate the corrected bound: 0, except for rounding
    printed_broken: float  # fraction of anchors that violate the published bound


def repulsion_gap(
    anchor: Tensor, labels: Tensor | None, rows: Tensor, row_labels: Tensor | None, *, alpha: float = 2.0
) -> RepulsionGap:
    """Return the slack of Lee's Theorem 4.6, max_{y'≠y} cos(f, μ_y') ≤ B/ν, as published and as corrected.

        B = (1/α) log E_{x'} e^{α cos(f, f(x'))} + (log C)/α,     ν = min_{y'≠y} ‖μ_y'‖

    The published bound can be false if every other class mean points away from f, since B can then be negative. The corrected
    bound is max(B, B/ν). The theorem assumes max_{y'≠y} fᵀμ_y' ≥ 0. `rows` (m, d) are the embeddings of all images, one
    draw each; every class has the same weight in E_{x'}, as in the theorem.

    anchor       embeddings (n, d)
    labels       classes of the anchors (n,)
    rows         embeddings (m, d) of all images
    row_labels   classes of the rows (m,)
    alpha        α > 0
    """
    check_number("alpha", alpha, above=0.0)
    f = unit_vectors("anchor", anchor, min_count=1, normalise=False).double()
    bank = unit_vectors("rows", rows, normalise=False)
    class_index, class_size = class_indices("row_labels", row_labels, len(bank), purpose="the repulsion bound")
    classes = len(class_size)
    own = _own_class(labels, row_labels, len(f), purpose="the repulsion bound")
    means = class_sums(bank, class_index, classes) / class_size[:, None]
    mean_length = torch.linalg.vector_norm(means, dim=1)
    dot = f @ means.T
    is_own = torch.nn.functional.one_hot(own, classes).bool()
    largest_cosine = (dot / mean_length.clamp(min=1e-12)).masked_fill(is_own, -math.inf).amax(1)
    nu = mean_length.expand_as(dot).masked_fill(is_own, math.inf).amin(1)
    log_mean = _log_mean_exp(f, bank.double(), class_index=class_index, class_size=class_size, alpha=alpha)
    bound = log_mean / alpha + math.log(classes) / alpha
    printed, corrected = bound / nu - largest_cosine, torch.maximum(bound, bound / nu) - largest_cosine
    outside = dot.masked_fill(is_own, -math.inf).amax(1) < 0
    return RepulsionGap(
        gap=float(corrected.mean()),
        outside=float(outside.double().mean()),
        error=standard_error(corrected),
        printed=float(printed.mean()),
        # Rounding turns a slack of exactly 0 into about ±1e-16.
        broken=float((corrected < -1e-9).double().mean()),
        printed_broken=float((printed < -1e-9).double().mean()),
    )


def _own_class(labels: Tensor | None, row_labels: Tensor | None, length: int, *, purpose: str) -> Tensor:
    """Return the index of each anchor's class among the rows' classes, which have already been checked."""
    class_indices("labels", labels, length, purpose=purpose, min_classes=1)
    assert labels is not None
    assert row_labels is not None
    present = row_labels.unique()
    # searchsorted returns len(present) for labels above all others; the comparison below reports them.
    index = torch.searchsorted(present, labels.to(present)).clamp(max=len(present) - 1)
    if not bool((present[index] == labels.to(present)).all()):
        raise ValueError("labels: expected only classes that occur in row_labels")
    return index


def _log_mean_exp(f: Tensor, rows: Tensor, *, class_index: Tensor, class_size: Tensor, alpha: float) -> Tensor:
    """Return the log of the mean over classes of the class means of e^{αs}, (n,), for blocks of anchors."""
    # Both means become weights inside one logsumexp, which cannot overflow at large α.
    log_weight = -(class_size[class_index] * len(class_size)).double().log()
    blocks = f.split(max(1, 2**22 // len(rows)))
    return torch.cat([(alpha * (block @ rows.T) + log_weight).logsumexp(1) for block in blocks])
