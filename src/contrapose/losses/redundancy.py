"""Objectives of redundancy reduction: views agree, and features or samples are decorrelated. Nothing is compared as a pair.

They take `Embeddings`, or the embeddings (m, d) of two views: `barlow_twins(z1, z2)`. Their statistics depend on the whole
batch, so several processes gather it first: `barlow_twins(gather(z1), gather(z2))`. With more than two views, each loss is
the mean over all pairs of views. All are computed in float32 or better, at any scale of the embeddings that it can represent.
`zero_cl` and `arb` wait for the GPU, since torch's eigendecomposition does, so a CUDA graph cannot capture them; the other
objectives do not wait.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import hardshrink, mse_loss

from contrapose.embeddings import Embeddings, State
from contrapose.losses.objective import Settings, objective
from contrapose.pairs import unit
from contrapose.randomness import permutation
from contrapose.reduce.derivatives import in_transform
from contrapose.reduce.unit import full_precision, is_free_to_read
from contrapose.validate import NotFinite, check_choice, check_count, check_embeddings, check_number

__all__ = ["FeatureOrder", "arb", "barlow_twins", "vicreg", "w_mse", "zero_cl"]

T = TypeVar("T")
_EPSILON = 1e-5  # added to a variance before features are divided by its square root, as in batch norm


@objective(takes="embeddings")
def barlow_twins(embeddings: Embeddings, *, weight: float = 5e-3) -> Tensor:
    """Σ_k (1 - C_kk)² + λ Σ_{k≠l} C_kl² with C = Z1ᵀZ2 / m of standardised features (Barlow Twins, Zbontar et al., Eq. 1).

    Features are standardised as in batch norm, with the biased variance (divided by m) plus 1e-5. The authors' code has
    λ = 0.0051.
    lightly's loss is the same on one process; on several it standardises with the statistics of each process.

    embeddings   `Embeddings`, or two tensors (m, d), one per view
    weight       λ, the weight of the off-diagonal correlations

    >>> z1, z2 = torch.eye(4, 3), torch.eye(4, 3)
    >>> round(barlow_twins(z1, z2).item(), 4)
    0.0033
    """
    check_number("weight", weight, least=0.0)

    def loss(a: Tensor, b: Tensor) -> Tensor:
        diagonal = (a * b).mean(0)
        total = _squared_norm(a, b) / len(a) ** 2
        return (1 - diagonal).square().sum() + weight * (total - diagonal.square().sum())

    return _mean_over_view_pairs(embeddings, _standardise, loss)


@objective(takes="embeddings")
def vicreg(
    embeddings: Embeddings,
    *,
    invariance_weight: float = 25.0,
    variance_weight: float = 25.0,
    covariance_weight: float = 1.0,
) -> Tensor:
    """λ mean (z1 - z2)² + Σ_views [μ/2 mean_k max(0, 1 - √(Var_k + 1e-4)) + ν/d Σ_{k≠l} Cov_kl²] (VICReg, Bardes et al.).

    Variance and covariance are unbiased, divided by m - 1, as in the authors' code and in lightly, whose loss is the same on
    one process. The factor ½ of the variance term and the mean over features of (z1 - z2)² also follow their code; the paper
    has neither.

    The loss grows with the fourth power of the embeddings' length, so float32 cannot hold it from about 1e9 on. On a CPU, a
    ValueError says so; on a GPU, which is not waited for, the loss is then infinite or NaN.

    embeddings          `Embeddings`, or two tensors (m, d), one per view
    invariance_weight   λ, the weight of the squared difference between views
    variance_weight     μ, the weight of the penalty on standard deviations below 1
    covariance_weight   ν, the weight of the covariances of different features
    """
    for name, value in (
        ("invariance_weight", invariance_weight),
        ("variance_weight", variance_weight),
        ("covariance_weight", covariance_weight),
    ):
        check_number(name, value, least=0.0)

    def penalise(z: Tensor) -> tuple[Tensor, Tensor]:
        """Return a view and the penalty on its variance and covariance."""
        centred = z - z.mean(0)
        variance = centred.square().sum(0) / (len(z) - 1)
        covariance = _squared_norm(centred, centred) / (len(z) - 1) ** 2 - variance.square().sum()
        below = torch.relu(1 - (variance + 1e-4).sqrt()).mean()
        return z, variance_weight / 2 * below + covariance_weight / z.shape[1] * covariance

    def loss(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> Tensor:
        return invariance_weight * mse_loss(a[0], b[0]) + a[1] + b[1]

    total = _mean_over_view_pairs(embeddings, penalise, loss)
    if _overflows(total, embeddings.z):  # perhaps only its sums do: in float64, they do not
        exact = _mean_over_view_pairs(replace(embeddings, z=embeddings.z.double()), penalise, loss)
        total = exact.to(total.dtype)
        if _overflows(total, embeddings.z):
            raise NotFinite(
                f"z: vicreg exceeds {str(total.dtype).removeprefix('torch.')} for embeddings of up to "
                f"{float(embeddings.z.detach().abs().max()):.2g}, since it grows with the fourth power of their length; "
                "normalise the embeddings or scale them down"
            )
    return total


def _overflows(value: Tensor, z: Tensor) -> bool:
    """Return whether a value is not finite although the embeddings are; False where reading it would wait for a device."""
    return _can_read(value) and not bool(value.isfinite()) and bool(z.isfinite().all())


@objective(takes="embeddings")
def w_mse(embeddings: Embeddings, *, size: int = 128, shrinkage: float = 0.0) -> Tensor:
    """mean (2 - 2 cos(L1⁻¹(z1 - z̄1), L2⁻¹(z2 - z̄2))) with LLᵀ = (1 - ε) Cov + ε I of each view (W-MSE, Ermolov et al.).

    Each sub-batch of `size` samples is whitened on its own; the gradient flows through the whitening. The authors draw the
    sub-batches at random. Here they are consecutive rows, which is equivalent if the data loader shuffles. If the batch size is
    not a multiple of `size`, the batch is divided into fewer, equal parts. `size` should be at least twice the width of the
    embeddings.

    A covariance is singular if there are fewer samples than features, or if features are constant. A ridge on the order of its
    rounding error, 8 eps · trace, is added to every covariance and keeps value and gradient finite.

    embeddings   `Embeddings`, or two tensors (m, d), one per view
    size         number of samples that are whitened together
    shrinkage    ε in [0, 1]: how far the covariance is moved towards the identity
    """
    check_count("size", size, least=2)
    check_number("shrinkage", shrinkage, least=0.0, most=1.0)

    def whiten(z: Tensor) -> Tensor:
        return torch.cat([unit(_whiten(part, shrinkage)) for part in z.tensor_split(_parts(len(z), size))])

    return _mean_over_view_pairs(embeddings, whiten, lambda a, b: 2 - 2 * (a * b).sum(1).mean())


@objective(takes="embeddings", can_capture=False)
def zero_cl(embeddings: Embeddings, *, form: str = "joint", ridge: float = 0.01) -> Tensor:
    """Σ_k (1 - C_kk)² with C = Ẑ1ᵀẐ2 / m, Ẑ = Z (ZᵀZ/m + εI)^{-1/2}: features, instances or both (Zero-CL, Zhang et al.).

    Features are standardised over the batch and then whitened; no gradient flows through the matrix that whitens them. With
    `form="instance"` samples and features swap roles: a sample is standardised over its features, whitened over the
    batch, and C is m × m. "joint" is the sum of both losses. Features are standardised as in `barlow_twins`; the authors'
    code for ImageNet-100 divides by the unbiased deviation plus 1e-4.

    embeddings   `Embeddings`, or two tensors (m, d), one per view
    form         "feature" (Zero-FCL), "instance" (Zero-ICL) or "joint" (Zero-CL)
    ridge        ε, added to the eigenvalues
    """
    check_choice("form", form, "joint", "feature", "instance")
    check_number("ridge", ridge, above=0.0)
    forms = ("feature", "instance") if form == "joint" else (form,)

    def whiten(z: Tensor) -> list[Tensor]:
        return [_zca(_standardise(z if form == "feature" else z.T), ridge) for form in forms]

    def loss(a: list[Tensor], b: list[Tensor]) -> Tensor:
        return torch.stack([_distance_from_one(x, y) for x, y in zip(a, b, strict=True)]).sum()

    return _mean_over_view_pairs(embeddings, whiten, loss)


class FeatureOrder(State):
    """Reshuffles the features in each step, so that `arb` with groups decorrelates all of them in the course of training.

    The order is a function of the step number, which is in `state_dict`, so all processes and a resumed run use the same order.

        criterion = Loss(arb, group_size=256, state=FeatureOrder())
    """

    step: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def settings(self, batch: Embeddings) -> dict[str, Tensor]:
        """Return the feature order for this step as an argument of `arb`."""
        z = batch.z
        return {"order": permutation(z.shape[-1], self.step.to(z.device), device=z.device)}

    def update(self, batch: Embeddings, **settings: object) -> None:
        """Count the step."""
        self.step += 1


def _make_order(settings: Settings, samples: int) -> tuple[Settings, State | None]:
    """Return the settings of `arb`, and a `FeatureOrder` if features are divided into groups."""
    return settings, None if settings.get("group_size") is None else FeatureOrder()


@objective(takes="embeddings", can_capture=False, provided=("order",), make_state=_make_order)
def arb(
    embeddings: Embeddings, *, group_size: int | None = None, ridge: float = 1e-5, order: Tensor | None = None
) -> Tensor:
    """Σ_k (1 - ⟨z1_k, b2_k⟩/m)² + Σ_k (1 - ⟨z2_k, b1_k⟩/m)², B = Z (ZᵀZ/m + εI)^{-1/2} (ARB, Zhang et al., CVPR 2022).

    Each standardised feature is aligned with the other view's nearest orthonormal base B, which carries no gradient. With
    `group_size`, each group of that many features has its own base; if the width is not a multiple of `group_size`, there are
    fewer, equal groups. The authors shuffle the features before grouping them: pass `order`, or use `FeatureOrder` as the
    state. Their code also shrinks the covariance by 1e-4 towards the identity.

    embeddings   `Embeddings`, or two tensors (m, d), one per view
    group_size   number of features per group; default: all features in one group
    ridge        ε, added to the eigenvalues
    order        order of the features, a permutation (d,); default: as they are
    """
    if group_size is not None:
        check_count("group_size", group_size, least=1)
    check_number("ridge", ridge, above=0.0)

    def features_and_base(z: Tensor) -> tuple[Tensor, Tensor]:
        features = _standardise(z) if order is None else _standardise(z)[:, order]
        groups = features.tensor_split(_parts(z.shape[1], group_size or z.shape[1]), dim=1)
        return features, torch.cat([_orthonormal_base(group, ridge) for group in groups], 1)

    def loss(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> Tensor:
        return _distance_from_one(a[0], b[1]) + _distance_from_one(b[0], a[1])

    return _mean_over_view_pairs(embeddings, features_and_base, loss)


def _mean_over_view_pairs(
    embeddings: Embeddings, prepare: Callable[[Tensor], T], loss: Callable[[T, T], Tensor]
) -> Tensor:
    """Return the mean of a loss over all pairs of views, each (m, d), after `prepare` is applied to each view once."""
    z = embeddings.z
    check_embeddings("z", z, 3)
    if embeddings.target is not None:
        raise ValueError(
            "target: this loss compares views from one network, but these embeddings come from two networks"
        )
    if z.shape[0] < 2 or z.shape[1] < 2:
        raise ValueError(f"z: expected at least two views of two samples, (V, m, d), got shape {tuple(z.shape)}")
    with full_precision(z):
        views = [prepare(view) for view in (z if z.dtype == torch.float64 else z.float())]
        return torch.stack([loss(a, b) for a, b in combinations(views, 2)]).mean()


def _distance_from_one(a: Tensor, b: Tensor) -> Tensor:
    """Return Σ_k (1 - C_kk)² with C = aᵀb / n, of rows (n, k)."""
    return (1 - (a * b).mean(0)).square().sum()


def _standardise(z: Tensor) -> Tensor:
    """Return features (n, d) with mean 0 and variance 1 over the rows; constant features become 0."""
    centred = z - z.mean(0)
    variance = centred.square().mean(0)
    if _can_read(variance) and float(variance.detach().max()) < _high(z) ** 2:  # not if it is NaN
        return centred * (variance + _EPSILON).rsqrt()
    factors = _factors(z, 0)
    scaled = z * factors
    mean = scaled.mean(0)
    centred = scaled - mean
    with torch.no_grad():
        # Where a feature was scaled down, epsilon may underflow; of a constant feature, the mean's rounding error remains.
        rounding = (8 * torch.finfo(z.dtype).eps * mean).square()
        epsilon = torch.where(factors < 1, rounding, _EPSILON)
    return centred * (centred.square().mean(0) + epsilon).rsqrt()


def _high(z: Tensor) -> float:
    """Return a number whose square, and sums of its square, do not overflow in the dtype of z."""
    return float(torch.finfo(z.dtype).max ** 0.25)


@torch.no_grad()
def _factors(z: Tensor, *dims: int, small: bool = False) -> Tensor:
    """Return powers of two that bring the largest numbers near 1 where squares would overflow or, with `small`, underflow.

    One factor for all elements along `dims`, or for all of z; 1 where no scaling is needed.
    """
    high, tiny = _high(z), torch.finfo(z.dtype).tiny
    largest = z.abs().amax(dims)
    factors = (torch.frexp(largest).mantissa / largest).clamp(tiny, 1 / tiny)
    extreme = largest > high
    if small:
        extreme |= (largest < 1 / high) & (largest > 0)
    return torch.where(extreme, factors, 1.0)


def _can_read(tensor: Tensor) -> bool:
    """Return whether a tensor's values can be read now and without waiting for a device."""
    return is_free_to_read(tensor) and not in_transform()


def _squared_norm(a: Tensor, b: Tensor) -> Tensor:
    """Return Σ_kl (aᵀb)_kl² of rows (n, d)."""
    if len(a) < a.shape[1]:  # the same sum from two n × n matrices, which are smaller than d × d
        return ((a @ a.T) * (b @ b.T)).sum()
    return (a.T @ b).square().sum()


def _whiten(z: Tensor, shrinkage: float) -> Tensor:
    """Return L⁻¹(z - z̄), (n, d), with LLᵀ the covariance of the rows, moved towards the identity."""
    # The result is the same at any scale. With shrinkage, nothing is scaled up: the covariance cannot underflow then, and the
    # scaled identity would overflow.
    high = _high(z)
    shrunk: float | Tensor = shrinkage
    if not (_can_read(z) and 1 / high < float(z.detach().abs().max()) < high):
        factor = _factors(z, small=not shrinkage)
        z, shrunk = z * factor, shrinkage * factor.square() if shrinkage else 0.0
    centred, identity = z - z.mean(0), torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
    covariance = (1 - shrinkage) * (centred.T @ centred) / (len(z) - 1) + shrunk * identity
    with torch.no_grad():
        # The rounding errors of the covariance and of the mean, and a floor for zeros: all far below the effect of shrinkage.
        eps, tiny = torch.finfo(z.dtype).eps, torch.finfo(z.dtype).tiny
        ridge = 8 * eps * covariance.trace() + eps**2 * z.square().sum() + tiny
    # Not `cholesky`, which would wait for the device to report a failure; here a failure shows as NaN.
    factor, failed = torch.linalg.cholesky_ex(covariance + ridge * identity)
    factor = factor.masked_fill(failed != 0, torch.nan)
    whitened: Tensor = torch.linalg.solve_triangular(factor, centred.T, upper=False).T
    return whitened


def _zca(z: Tensor, ridge: float) -> Tensor:
    """Return z W, (n, d), with W = (zᵀz/n + εI)^{-1/2}; no gradient flows through W."""
    held, (n, d) = z.detach(), z.shape
    if d <= n:
        return z @ _matrix_function(held.T @ held / n, ridge, torch.rsqrt)
    # W is f(zᵀz/n) with f(s) = (s + ε)^{-1/2}. That is f(0) I + zᵀ g(zzᵀ/n) z/n with g(s) = (f(s) - f(0)) / s, which needs
    # the eigenvectors of an n × n matrix instead of a d × d matrix.
    root = math.sqrt(ridge)
    inner = _matrix_function(held @ held.T / n, ridge, lambda s: -1 / (root * s.sqrt() * (s.sqrt() + root)))
    return z / root + (z @ held.T) @ (inner @ held) / n


def _orthonormal_base(z: Tensor, ridge: float) -> Tensor:
    """Return z (zᵀz/n + εI)^{-1/2}, (n, d), without gradient: the nearest orthonormal base, apart from ε."""
    z, (n, d) = z.detach(), z.shape
    if d <= n:
        return z @ _matrix_function(z.T @ z / n, ridge, torch.rsqrt)
    # The same result from the smaller matrix. `_zca` cannot do this, because the gradient of its z is multiplied by W.
    return _matrix_function(z @ z.T / n, ridge, torch.rsqrt) @ z


def _matrix_function(matrix: Tensor, ridge: float, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Return U f(S + ε) Uᵀ of a positive semi-definite matrix U S Uᵀ."""
    # `eigh` raises an error for NaN. Zeros replace NaN here, so that NaN embeddings reach the loss, where they are noticed.
    # Without the ridge, eigenvectors of a float32 matrix that holds only rounding errors can be NaN. Subnormal numbers, which
    # some versions of LAPACK do not converge with, do not matter beside the ridge.
    finite = torch.nan_to_num(matrix, nan=0.0, posinf=0.0, neginf=0.0)
    finite = hardshrink(finite, torch.finfo(matrix.dtype).tiny)
    identity = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    values, vectors = torch.linalg.eigh(finite + ridge * identity)
    return torch.mm(vectors * function(values.clamp(min=ridge)), vectors.T)


def _parts(count: int, size: int) -> int:
    """Return the largest number of equal parts with at least `size` elements each; 1 if `count` is below `size`."""
    return max(1, count // size)
