"""From one value per anchor to a loss."""

from __future__ import annotations

from torch import Tensor

from contrapose.validate import check_choice


def finish(values: Tensor, reduction: str) -> Tensor:
    """`"mean"`: the mean over anchors. `"none"`: one value for each, whose mean is the loss. Of (n, k) the mean over k."""
    check_choice("reduction", reduction, "mean", "none")
    return values.mean() if reduction == "mean" else values if values.ndim == 1 else values.mean(1)
