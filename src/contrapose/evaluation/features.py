"""Features of a whole data set."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from contrapose.data.views.operations import normalize


@torch.no_grad()
def features(
    network: Callable[[Tensor], Tensor],
    batches: Iterable[Tensor],
    *,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    device: torch.device | str = "cpu",
) -> Tensor:
    """(N, width) on `device`: uint8 batches (B, 3, H, W), not augmented, normalised as in training."""
    made = []
    for pixels in batches:
        x = normalize(pixels.to(device).float() / 255, mean, std)
        made.append(network(x.contiguous(memory_format=torch.channels_last)).float())
    return torch.cat(made)
