"""Temperatures computed from the batch (MACL) or by the encoder (TaU)."""

from __future__ import annotations

import torch
from torch import Tensor

from contrapose.validate import check_number, check_values


def adaptive(positives: Tensor, *, base: float = 0.1, alpha: float = 0.5, center: float = 0.0) -> Tensor:
    """Return τ_a = τ₀(1 + α(A - A₀)) with A the mean of `positives`, without gradient (MACL, Huang et al.).

    `positives` are the similarities that `pairs.positives()` returns.

    >>> adaptive(torch.tensor([[0.8], [0.6]]), base=0.1, alpha=0.5)
    tensor(0.1350)
    """
    check_number("base", base, above=0.0)
    check_number("alpha", alpha)
    check_number("center", center)
    temperature = base * (1 + alpha * (positives.detach().mean() - center))
    check_values(
        temperature > 0,
        lambda: (
            f"base, alpha, center: the adapted temperature is {float(temperature):g}, expected above 0 "
            f"(base={base}, alpha={alpha}, center={center}, mean positive similarity {float(positives.mean()):g})"
        ),
    )
    return temperature


def uncertainty(score: Tensor, *, base: float = 0.1) -> Tensor:
    """Return one temperature per anchor, τ / sigmoid(t̂); t̂ = `score` (n,) is an extra output of the encoder (TaU).

    Gradients flow to `score`. The uncertainty of a sample is 1 / sigmoid(t̂), the temperature divided by `base`.

    >>> uncertainty(torch.tensor([0.0, 10.0]), base=0.1)
    tensor([0.2000, 0.1000])
    """
    check_number("base", base, above=0.0)
    if not isinstance(score, Tensor) or score.ndim != 1 or not score.is_floating_point():
        received = tuple(score.shape) if isinstance(score, Tensor) else type(score).__name__
        raise ValueError(f"score: expected one floating point number per anchor, shape (n,), got {received}")
    score = score.float() if score.dtype in (torch.float16, torch.bfloat16) else score
    # sigmoid underflows below t̂ ≈ -88; the floor keeps the temperature and its gradient finite.
    return base / torch.sigmoid(score).clamp(min=1e-6)
