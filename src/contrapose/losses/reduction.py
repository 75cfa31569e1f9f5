"""From one value per anchor to a loss."""

from __future__ import annotations

from torch import Tensor

from contrapose.validate import check_choice


def finish(values: Tensor, reduction: str) -> Tensor:
    """`"mean"`: the mean over anchors. `"none"`: the values themselves, whose mean is the loss."""
    check_choice("reduction", reduction, "mean", "none")
    return values.mean() if reduction == "mean" else values
