"""Check the input of an objective, and reduce one value per anchor to a loss."""

from __future__ import annotations

from torch import Tensor

from contrapose.validate import check_choice


def finish(values: Tensor, reduction: str) -> Tensor:
    """Return the mean over anchors ("mean") or one value per anchor, (n,) ("none"); average (n, k) over k as well."""
    check_choice("reduction", reduction, "mean", "none")
    return values.mean() if reduction == "mean" else values if values.ndim == 1 else values.mean(1)
