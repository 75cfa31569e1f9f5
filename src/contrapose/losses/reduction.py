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
    def checked(pairs: Any, *more: Any, **settings: Any) -> Tensor:
        if more or not isinstance(pairs, Pairs | Similarities):
            wanted = "what two_views, views, cross, queue, bank or from_similarities make"
            came = " and ".join(type(given).__name__ for given in (pairs, *more))
            hint = f"; for two views write {function.__name__}(two_views(z1, z2))" if isinstance(pairs, Tensor) else ""
            raise ValueError(f"pairs: expected {wanted}, got {came}{hint}")
        return function(pairs, **settings)

    return cast(F, checked)


def finish(values: Tensor, reduction: str) -> Tensor:
    """`"mean"`: the mean over anchors. `"none"`: one value for each, whose mean is the loss. Of (n, k) the mean over k."""
    check_choice("reduction", reduction, "mean", "none")
    return values.mean() if reduction == "mean" else values if values.ndim == 1 else values.mean(1)
