"""Measure a criterion: its value and gradient on given embeddings, and how far they are from the expected values."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from contrapose.conformance.findings import Finding
from contrapose.reduce.hardware import unchanged_onednn

T = TypeVar("T")
Criterion = Callable[..., Tensor]  # (z1, z2) -> scalar, with `ids` if it takes them
MakeCriterion = Callable[[float], Criterion]  # maps a temperature to a criterion
ID_ARGUMENTS = ("ids", "indices")


@dataclass(frozen=True)
class Outcome:
    """The value of a criterion, and its gradient with respect to both views, (2, m, d); float64."""

    value: Tensor
    gradient: Tensor

    @property
    def finite(self) -> bool:
        """Whether value and gradient are free of NaN and infinity."""
        return bool(self.value.isfinite()) and bool(self.gradient.isfinite().all())


def ids_argument(criterion: Criterion) -> str | None:
    """Return the name of the argument that takes the data-set index of each sample; None if there is none."""
    function = criterion.forward if isinstance(criterion, nn.Module) else criterion
    parameters = inspect.signature(function).parameters
    return next((name for name in ID_ARGUMENTS if name in parameters), None)


def evaluate(criterion: Criterion, z1: Tensor, z2: Tensor, *, ids: Tensor | None = None) -> Tensor:
    """Return the criterion's value, with ids if it takes them."""
    argument = ids_argument(criterion)
    value = criterion(z1, z2) if argument is None or ids is None else criterion(z1, z2, **{argument: ids})
    if not isinstance(value, Tensor) or value.numel() != 1:
        received = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"the criterion must return a scalar tensor, got {received}")
    return value.squeeze()


def measure(criterion: Criterion, z1: Tensor, z2: Tensor, *, autocast: torch.dtype | None = None) -> Outcome:
    """Return value and gradient; the forward pass runs under autocast if a data type is given."""
    leaves = [z.detach().requires_grad_() for z in (z1, z2)]
    # In fp16 a gradient below 6e-8 becomes zero, which is why training scales the loss (torch.amp.GradScaler).
    scale = 1024.0 if z1.dtype == torch.float16 else 1.0
    with unchanged_onednn():
        with torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None):
            value = evaluate(criterion, *leaves)
        gradients = torch.autograd.grad(value, leaves, torch.full_like(value, scale), allow_unused=True)
    known = [torch.zeros_like(z) if g is None else g for z, g in zip(leaves, gradients, strict=True)]
    return Outcome(value.detach().double(), torch.stack(known).double() / scale)


def relative_difference(outcome: Outcome, expected: Outcome) -> float:
    """Return the larger of the relative differences in value and in gradient (Euclidean norm)."""
    tiny = torch.finfo(torch.float64).tiny  # two zeros do not differ
    value = (outcome.value - expected.value).abs() / expected.value.abs().clamp(min=tiny)
    gradient = (outcome.gradient - expected.gradient).norm() / expected.gradient.norm().clamp(min=tiny)
    return float(torch.maximum(value, gradient))


def attempt(check: str, case: str, work: Callable[[], T], *, may_refuse: bool = False) -> T | Finding:
    """Return what `work` returns, or a finding if it raises; with `may_refuse`, a ValueError counts as ok."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a criterion that warns still has a value
            return work()
    except Exception as error:  # a criterion may raise anything, and the other cases are still checked
        if may_refuse and isinstance(error, ValueError):
            return Finding(check, case, "ok", note=f"refused: {first_line(error)}")
        return Finding(check, case, "raises", note=f"{type(error).__name__}: {first_line(error)}")


def compare(
    check: str,
    case: str,
    work: Callable[[], Outcome],
    *,
    expected: Outcome | None = None,
    tolerance: float = 0.0,
    largest_gradient: float = math.inf,
    may_refuse: bool = False,
) -> Finding:
    """Return the finding for one case: ok if finite and, if `expected` is given, equal to it up to the tolerance."""
    outcome = attempt(check, case, work, may_refuse=may_refuse)
    if isinstance(outcome, Finding):
        return outcome
    if not outcome.finite:
        part = "gradient" if outcome.value.isfinite() else "value"
        return Finding(check, case, "not finite", note=f"the {part} is NaN or infinite")
    largest = float(outcome.gradient.abs().max())
    if largest > largest_gradient:
        return Finding(check, case, "differs", largest, f"a coordinate of the gradient is {largest:.0e}")
    if expected is None:
        return Finding(check, case, "ok")
    difference = relative_difference(outcome, expected)
    return Finding(check, case, "ok" if difference <= tolerance else "differs", difference)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, shortened."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:160]
