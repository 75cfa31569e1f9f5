"""The gradient of any criterion with respect to each similarity, from the criterion's own gradient.

A criterion L that depends on embeddings X only through their similarities G = X Xᵀ has the gradient ∂L/∂X = M X, where M_ij is
the derivative with respect to the similarity of rows i and j (s_ij and s_ji are one number). With as many dimensions as rows, X
is invertible and M = ∂L/∂X X⁻¹. So the embeddings of a batch are replaced by others of the same similarities in a space of
that many dimensions. A criterion that normalises its input only changes the diagonal of M, which is not used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from contrapose.doctor.call import Call
from contrapose.doctor.quiet import CannotAsk
from contrapose.pairs import unit

_JITTER = {torch.float64: 1e-6, torch.float32: 1e-4}  # added to the diagonal of G, whose rank is at most the width
_ASYMMETRY = 0.02  # M of a criterion of similarities is symmetric, up to the rounding of a criterion in float32


@dataclass(frozen=True, eq=False)
class SimilarityGradient:
    """What a criterion does to each similarity of a batch of R rows, all sides together."""

    similarity: Tensor  # (R, R) cosine similarities
    gradient: Tensor  # (R, R): ∂L/∂s, 0 on the diagonal; below 0 where two rows are pulled together
    value: Tensor  # the loss of these embeddings
    mismatched: Tensor  # the loss if each row's positive is another sample: that of a network that has learned nothing
    ideal: Tensor  # the loss if positives coincide and all other rows are orthogonal
    rescaled: Tensor  # the loss if each row is scaled by a random factor between 0.5 and 2; `value` if it normalises
    moved: Tensor  # the loss if the same vector is added to all rows, which changes no distance
    has_gradient: Tensor  # (R,) whether each row gets a gradient: a criterion may detach a side


def similarity_gradient(call: Call, make: Callable[[], Callable[..., Tensor]]) -> SimilarityGradient:
    """Return the gradient of a criterion with respect to each similarity; raise CannotAsk if it is no function of them.

    `make` returns a copy of the criterion for each call of it, since a call may change its state.
    """
    failures = []
    for dtype in (torch.float64, torch.float32):
        try:
            return _measure(call, make, dtype)
        except CannotAsk:
            raise
        except Exception as error:  # a criterion may raise anything for a width or a batch that it does not expect
            failures.append(f"{type(error).__name__}: {str(error).strip().splitlines()[0][:120] if str(error) else ''}")
    raise CannotAsk(f"the criterion cannot be called with other embeddings ({failures[-1]})")


def _measure(call: Call, make: Callable[[], Callable[..., Tensor]], dtype: torch.dtype) -> SimilarityGradient:
    rows, sides = call.rows, len(call.sides)
    z = torch.cat([side.detach() for side in call.sides]).double()
    norms = torch.linalg.vector_norm(z, dim=1, keepdim=True)
    lifted, similarity = lift(unit(z), jitter=_JITTER[dtype])

    def ask(x: Tensor) -> Tensor:
        # The same random numbers in each call: a criterion may draw its negatives.
        with torch.random.fork_rng([x.device] if x.device.type == "cuda" else []):
            return call.ask(make(), x.to(dtype).split(rows)).double()

    with torch.autocast(z.device.type, enabled=False):
        leaf = (lifted * norms).requires_grad_()
        value = ask(leaf)
        if not value.requires_grad:
            raise CannotAsk("the criterion's value has no gradient")
        (gradient,) = torch.autograd.grad(value, leaf)
        with torch.no_grad():
            mismatched = ask(_mismatched(call, lifted * norms))
            ideal = ask(_ideal(call, sides))
            factors = torch.exp2(torch.linspace(-1, 1, len(z), dtype=torch.float64, device=z.device)[_shuffle(len(z))])
            rescaled = ask(lifted * norms * factors[:, None])
            moved = ask(lifted * norms + norms.mean() * lifted[-1])
    matrix = torch.linalg.solve_triangular(lifted, gradient * norms, upper=False, left=False)
    matrix.fill_diagonal_(0.0)
    has_gradient = gradient.abs().amax(1) > 0
    both = has_gradient[:, None] & has_gradient[None]
    _check_symmetric(matrix, both)
    # A similarity whose other row is detached has its derivative in one of the two triangles only.
    combined = torch.where(both, (matrix + matrix.T) / 2, matrix + matrix.T)
    # At a low temperature most derivatives are far smaller than the rounding errors, which the asymmetry shows.
    noise = torch.where(both, (matrix - matrix.T).abs(), 0.0).amax()
    combined = torch.where(combined.abs() > torch.maximum(3 * noise, 1e-12 * combined.abs().amax()), combined, 0.0)
    return SimilarityGradient(similarity, combined, value.detach(), mismatched, ideal, rescaled, moved, has_gradient)


def lift(z: Tensor, *, jitter: float) -> tuple[Tensor, Tensor]:
    """Return unit vectors (R, R) with the similarities of unit vectors z (R, d), lower triangular, and the similarities."""
    similarity = (z @ z.T).clamp(-1, 1)
    count = len(z)
    identity = torch.eye(count, dtype=z.dtype, device=z.device)
    raised = (similarity + jitter * identity) / (1 + jitter)
    raised.fill_diagonal_(1.0)
    factor, info = torch.linalg.cholesky_ex(raised)
    if int(info):
        raise CannotAsk("the embeddings are not finite, or their similarities are too close to 1 everywhere")
    return factor, similarity


def _check_symmetric(matrix: Tensor, both: Tensor) -> None:
    off = torch.where(both, matrix, 0.0)
    difference, size = (off - off.T).norm(), matrix.norm()
    if not bool(difference.isfinite()):
        raise CannotAsk("the criterion's gradient is not finite")
    if float(difference) > _ASYMMETRY * float(size):
        raise CannotAsk("the criterion is not a function of the similarities alone, or computes them in low precision")


def _shuffle(count: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(count))


def _mismatched(call: Call, x: Tensor) -> Tensor:
    """Return the rows with the positives of other samples."""
    if len(call.sides) == 1:
        return x[_shuffle(len(x)).to(x.device)]
    sides = list(x.split(call.rows))
    # Each view is moved by another number of rows, so that no two of them match.
    return torch.cat([side.roll(k * max(1, call.rows // len(sides)), 0) for k, side in enumerate(sides)])


def _ideal(call: Call, sides: int) -> Tensor:
    """Return unit vectors (R, R) of which positives are equal, and all others orthogonal."""
    groups = call.groups
    assert groups is not None
    _, index = groups.unique(return_inverse=True)
    if sides > 1:
        positives = sides if call.views_only else 2
        own = [index if k < positives else index + (k - 1) * call.rows for k in range(sides)]
        index = torch.cat(own)
    return torch.eye(sides * call.rows, dtype=torch.float64, device=index.device)[index]
