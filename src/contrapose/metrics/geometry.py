"""How an embedding lies on the sphere: spread, together, by class, collapsed.

Signs: `uniformity` and `interclass_uniformity` are U ≤ 0, lower is more uniform, as in DySTreSS; Wang & Liu's figures
show -U. Pairs: distinct ones, unless `include_self`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from contrapose.metrics.embeddings import among, class_sums, classes_of, units
from contrapose.reduce import LogSumExp, Scale
from contrapose.validate import check_choice, check_number, check_same_shape


def uniformity(z: Tensor, *, t: float = 2.0, include_self: bool = False) -> float:
    """U_t = log mean e^{-t‖z_i - z_j‖²} over i ≠ j (Wang & Isola): 0 when collapsed, lower when more uniform.

    Wang & Liu show -U. `include_self` counts each vector with itself too, as DySTreSS's code does.

    >>> round(uniformity(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])), 4)  # an antipodal pair: -4t
    -8.0
    """
    check_number("t", t, above=0.0)
    z = units("z", z)
    n = len(z)
    (each,) = among(z).reduce(LogSumExp(Scale(2 * t)))
    total = (each.double() - 2 * t).logsumexp(0)
    if include_self:
        total = torch.logaddexp(total, total.new_tensor(math.log(n)))
    return float(total) - math.log(n * n if include_self else n * (n - 1))


def uniformity_limit(d: int, *, t: float = 2.0) -> float:
    """U_t of the uniform distribution on the unit sphere of R^d: log ₀F₁(; d/2; t²) - 2t.

    With more and more points no embedding is more uniform; few of them can be, by about their number's share, since a point does
    not meet itself. In Wang & Isola's words the sum is a Bessel function.

    >>> round(uniformity_limit(128), 4)
    -3.9375
    """
    check_number("d", d, least=2)
    check_number("t", t, above=0.0)
    term = total = 1.0
    k = 0
    while term > 1e-17 * total:
        term *= t * t / ((k + 1) * (d / 2 + k))
        total += term
        k += 1
    return math.log(total) - 2 * t


def tolerance(z: Tensor, labels: Tensor | None, *, include_self: bool = False) -> float:
    """T = mean z_iᵀz_j over i ≠ j of one class (Wang & Liu, Eq. 11, as a conditional mean): 1 when classes are points.

    >>> z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    >>> round(tolerance(z, torch.tensor([0, 0, 1, 1])), 4)
    0.9
    """
    z = units("z", z)
    place, count = classes_of("labels", labels, len(z), why="tolerance")
    pairs = int((count * count if include_self else count * (count - 1)).sum())
    if not pairs:
        raise ValueError("labels: tolerance needs a class with at least two embeddings, and every class has one")
    # Σ_{i≠j} zᵢᵀzⱼ = ‖Σ z‖² - Σ ‖z‖² for each class: no matrix of pairs.
    total = class_sums(z, place, len(count)).square().sum()
    return float(total if include_self else total - z.double().square().sum()) / pairs


def alignment(
    z: Tensor, positive: Tensor | None = None, *, labels: Tensor | None = None, kind: str = "augmentation"
) -> float:
    """mean ‖z - z⁺‖² over positive pairs (Wang & Isola, α = 2): 0 when positives coincide.

    kind   "augmentation": z and `positive`, row by row, are two views of the same images
           "class": distinct pairs of one class, 2 - 2 · tolerance
           "all": all distinct pairs
    """
    check_choice("kind", kind, "augmentation", "class", "all")
    if kind == "class":
        return 2 - 2 * tolerance(z, labels)
    z = units("z", z, least=1 if kind == "augmentation" else 2)
    if kind == "all":
        total = z.double().sum(0).square().sum() - z.double().square().sum()
        return 2 - 2 * float(total) / (len(z) * (len(z) - 1))
    if positive is None:
        raise ValueError("positive: expected the second view of each image, or kind='class' or 'all'")
    check_same_shape("positive", positive, "z", z)
    return float((z - units("positive", positive, least=1)).double().square().sum(1).mean())


def interclass_uniformity(z: Tensor, labels: Tensor | None, *, t: float = 2.0) -> float:
    """log mean e^{-t‖μ_c - μ_c'‖²} over classes c ≠ c' (DySTreSS, Eq. 18): 0 when all centroids coincide.

    μ_c is the mean of the class's unit vectors, and is not normalised again.
    """
    check_number("t", t, above=0.0)
    z = units("z", z)
    place, count = classes_of("labels", labels, len(z), why="inter-class uniformity")
    centroids = class_sums(z, place, len(count)) / count[:, None]
    return float((-t * torch.pdist(centroids).square()).logsumexp(0)) - math.log(len(count) * (len(count) - 1) / 2)


def effective_rank(z: Tensor) -> float:
    """e^H of the singular values, as shares of their sum: how many directions are in use (Roy & Vetterli; RankMe)."""
    z = units("z", z).double()
    values = torch.linalg.eigvalsh(z.T @ z).clamp(min=0).sqrt()
    share = values / values.sum()
    return float(torch.special.entr(share).sum().exp())


def feature_std(z: Tensor) -> float:
    """Mean standard deviation of the coordinates, times √d: 1 on a uniform sphere, 0 when collapsed (SimSiam)."""
    z = units("z", z).double()
    return float(z.std(0, correction=0).mean()) * math.sqrt(z.shape[1])
