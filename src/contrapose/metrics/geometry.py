"""How embeddings are distributed on the unit sphere: uniformity, alignment, tolerance, and signs of collapse.

Sign convention: `uniformity` and `interclass_uniformity` return U ≤ 0, where lower is more uniform, as in DySTreSS; Wang &
Liu's figures show -U. Means are over distinct pairs, unless `include_self` is set.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from contrapose.metrics.embeddings import all_pairs, class_indices, class_sums, unit_vectors
from contrapose.reduce import LogSumExp, Scale
from contrapose.validate import check_choice, check_number, check_same_shape


def uniformity(z: Tensor, *, t: float = 2.0, include_self: bool = False) -> float:
    """Return U_t = log mean e^{-t‖z_i - z_j‖²} over i ≠ j (Wang & Isola): 0 when collapsed, lower when more uniform.

    Wang & Liu's figures show -U. `include_self` also counts the pairs i = j, as DySTreSS's code does.

    z              unit vectors (n, d); others are normalised with a warning
    t              t > 0: the larger it is, the more the close pairs dominate
    include_self   whether pairs i = j count

    >>> round(uniformity(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])), 4)  # an antipodal pair: -4t
    -8.0
    """
    check_number("t", t, above=0.0)
    z = unit_vectors("z", z)
    n = len(z)
    # -t‖z_i - z_j‖² = 2ts - 2t for unit vectors.
    (log_row_sums,) = all_pairs(z).reduce(LogSumExp(Scale(2 * t)))
    log_total = (log_row_sums.double() - 2 * t).logsumexp(0)
    if include_self:
        # Each of the n self-pairs has distance 0 and adds e⁰ = 1.
        log_total = torch.logaddexp(log_total, log_total.new_tensor(math.log(n)))
    return float(log_total) - math.log(n * n if include_self else n * (n - 1))


def uniformity_limit(d: int, *, t: float = 2.0) -> float:
    """Return U_t of the uniform distribution on the unit sphere in R^d: log ₀F₁(; d/2; t²) - 2t.

    This is the lowest value in the limit of many points. A finite sample can be lower by O(1/n), because self-pairs are
    excluded. Wang & Isola write the same value with a Bessel function.

    d   dimensions of the embeddings
    t   t of `uniformity`

    >>> round(uniformity_limit(128), 4)
    -3.9375
    """
    check_number("d", d, least=2)
    check_number("t", t, above=0.0)
    # All terms of the series are positive, so nothing cancels. The Bessel function would underflow for large d.
    term = total = 1.0
    k = 0
    while term > 1e-17 * total:
        term *= t * t / ((k + 1) * (d / 2 + k))
        total += term
        k += 1
    return math.log(total) - 2 * t


def tolerance(z: Tensor, labels: Tensor | None, *, include_self: bool = False) -> float:
    """Return T, the mean of z_iᵀz_j over pairs i ≠ j of the same class (Wang & Liu, Eq. 11, as a conditional mean).

    T is 1 when every class is a single point. `include_self` also counts the pairs i = j.

    z              unit vectors (n, d); others are normalised with a warning
    labels         class of each row of `z`, integers (n,)
    include_self   whether pairs i = j count

    >>> z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    >>> round(tolerance(z, torch.tensor([0, 0, 1, 1])), 4)
    0.9
    """
    z = unit_vectors("z", z)
    class_index, class_size = class_indices("labels", labels, len(z), purpose="tolerance")
    pair_count = int((class_size * class_size if include_self else class_size * (class_size - 1)).sum())
    if not pair_count:
        raise ValueError("labels: tolerance needs a class with at least two embeddings, but every class has only one")
    # Σ_{i≠j} zᵢᵀzⱼ = ‖Σ z‖² - Σ ‖z‖² for each class, so no matrix of pairs is needed.
    total = class_sums(z, class_index, len(class_size)).square().sum()
    return float(total if include_self else total - z.double().square().sum()) / pair_count


def alignment(
    z: Tensor, positive: Tensor | None = None, *, labels: Tensor | None = None, kind: str = "augmentation"
) -> float:
    """Return the mean of ‖z - z⁺‖² over positive pairs (Wang & Isola, α = 2): 0 when positives coincide.

    z          unit vectors (n, d); others are normalised with a warning
    positive   other views (n, d), for kind "augmentation"
    labels     classes (n,), for kind "class"
    kind       "augmentation": row i of z and of `positive` are two views of the same image
               "class": all distinct pairs of the same class, which is 2 - 2 · tolerance up to rounding
               "all": all distinct pairs
    """
    check_choice("kind", kind, "augmentation", "class", "all")
    z = unit_vectors("z", z, min_count=1 if kind == "augmentation" else 2)
    if kind == "class":
        return _mean_distance(z, *class_indices("labels", labels, len(z), purpose="alignment within classes"))
    if kind == "all":
        one_class = torch.zeros(len(z), dtype=torch.long, device=z.device)
        return _mean_distance(z, one_class, one_class.new_tensor([len(z)]))
    if positive is None:
        raise ValueError("positive: expected the second view of each image, or kind='class' or 'all', got None")
    check_same_shape("positive", positive, "z", z)
    return float((z - unit_vectors("positive", positive, min_count=1)).double().square().sum(1).mean())


def _mean_distance(z: Tensor, class_index: Tensor, class_size: Tensor) -> float:
    """Return the mean of ‖z_i - z_j‖² over pairs i ≠ j of the same class."""
    pair_count = int((class_size * (class_size - 1)).sum())
    if not pair_count:
        raise ValueError("labels: alignment needs a class with at least two embeddings, but every class has only one")
    # Σ_{i≠j} ‖zᵢ - zⱼ‖² = 2n Σ ‖z - μ‖² for each class. Unlike 2 - 2s it does not cancel if a class is nearly a point.
    centroids = class_sums(z, class_index, len(class_size)) / class_size[:, None]
    spread = (z.double() - centroids[class_index]).square().sum(1)
    return 2 * float((class_size[class_index] * spread).sum()) / pair_count


def interclass_uniformity(z: Tensor, labels: Tensor | None, *, t: float = 2.0) -> float:
    """Return log mean e^{-t‖μ_c - μ_c'‖²} over classes c ≠ c' (DySTreSS, Eq. 18): 0 when all centroids coincide.

    μ_c is the mean of the unit vectors of class c and is not normalised again.

    z        unit vectors (n, d); others are normalised with a warning
    labels   class of each row of `z`, integers (n,)
    t        t > 0: the larger it is, the more the close pairs dominate
    """
    check_number("t", t, above=0.0)
    z = unit_vectors("z", z)
    class_index, class_size = class_indices("labels", labels, len(z), purpose="inter-class uniformity")
    classes = len(class_size)
    centroids = class_sums(z, class_index, classes) / class_size[:, None]
    # pdist lists each unordered pair once; the mean over ordered pairs is the same.
    return float((-t * torch.pdist(centroids).square()).logsumexp(0)) - math.log(classes * (classes - 1) / 2)


def effective_rank(z: Tensor) -> float:
    """Return e^H of the normalised singular values: the number of directions in use (Roy & Vetterli; RankMe).

    z   unit vectors (n, d); others are normalised with a warning
    """
    z = unit_vectors("z", z).double()
    # Eigenvalues of the d × d matrix are far cheaper than an SVD of the n × d matrix. Rounding can make them negative.
    singular_values = torch.linalg.eigvalsh(z.T @ z).clamp(min=0).sqrt()
    share = singular_values / singular_values.sum()
    return float(torch.special.entr(share).sum().exp())


def feature_std(z: Tensor) -> float:
    """Return √d times the mean standard deviation of the coordinates: 1 on a uniform sphere, 0 if collapsed (SimSiam).

    z   unit vectors (n, d); others are normalised with a warning
    """
    z = unit_vectors("z", z).double()
    return float(z.std(0, correction=0).mean()) * math.sqrt(z.shape[1])
