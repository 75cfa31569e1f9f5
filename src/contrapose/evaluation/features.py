"""Features of a whole data set."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from contrapose.data.images import Images
from contrapose.data.views.operations import normalize


@torch.no_grad()
def features(
    network: Callable[[Tensor], Tensor],
    images: Images,
    *,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    device: torch.device | str = "cpu",
    batch: int = 500,
) -> Tensor:
    """(N, width) on `device`: every image once, not augmented, normalised as in training."""
    made = []
    for pixels in images.pixels.split(batch):
        x = normalize(pixels.to(device).float() / 255, mean, std)
        made.append(network(x.contiguous(memory_format=torch.channels_last)).float())
    return torch.cat(made)
