"""From one value per anchor to a loss."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from torch import Tensor

from contrapose.pairs import Pairs, Similarities
from contrapose.validate import check_choice

F = TypeVar("F", bound=Callable[..., Tensor])


def objective(function: F) -> F:
    """A function of pairs that says so when it is given something else."""

    @wraps(function)
    def checked(pairs: Any, **settings: Any) -> Tensor:
        if not isinstance(pairs, Pairs | Similarities):
            wanted = "what two_views, views, cross, queue, bank or from_similarities make"
            raise ValueError(f"pairs: expected {wanted}, got {type(pairs).__name__}")
        return function(pairs, **settings)

    return cast(F, checked)


def finish(values: Tensor, reduction: str) -> Tensor:
    """`"mean"`: the mean over anchors. `"none"`: one value for each, whose mean is the loss. Of (n, k) the mean over k."""
    check_choice("reduction", reduction, "mean", "none")
    return values.mean() if reduction == "mean" else values if values.ndim == 1 else values.mean(1)
