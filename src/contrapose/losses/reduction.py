"""Check the input of an objective, and reduce one value per anchor to a loss."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from torch import Tensor

from contrapose.pairs import Pairs, Similarities
from contrapose.validate import check_choice

F = TypeVar("F", bound=Callable[..., Tensor])


def objective(function: F) -> F:
    """Decorate a function of pairs to raise a helpful error if it is called with anything else, such as embeddings."""

    @wraps(function)
    def checked(pairs: Any, *extra: Any, **settings: Any) -> Tensor:
        if extra or not isinstance(pairs, Pairs | Similarities):
            expected = "the result of two_views, views, cross, queue, bank or from_similarities"
            received = " and ".join(type(argument).__name__ for argument in (pairs, *extra))
            hint = f"; for two views write {function.__name__}(two_views(z1, z2))" if isinstance(pairs, Tensor) else ""
            raise ValueError(f"pairs: expected {expected}, got {received}{hint}")
        return function(pairs, **settings)

    return cast(F, checked)


def finish(values: Tensor, reduction: str) -> Tensor:
    """Return the mean over anchors ("mean") or one value per anchor, (n,) ("none"); average (n, k) over k as well."""
    check_choice("reduction", reduction, "mean", "none")
    return values.mean() if reduction == "mean" else values if values.ndim == 1 else values.mean(1)
