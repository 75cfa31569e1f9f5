"""Features of a whole data set."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from contrapose.modalities.images.views import Recipe
from contrapose.modalities.images.views.operations import normalize


def as_in_evaluation(pixels: Tensor, recipe: Recipe) -> Tensor:
    """uint8 (B, 3, H, W) -> what a network sees that was trained with the recipe: not augmented, of its size, normalised."""
    return normalize(_centred(pixels.float() / 255, recipe.size, recipe.resized), recipe.mean, recipe.std)


def _centred(images: Tensor, size: int, shorter: int) -> Tensor:
    """Images of another size: the shorter side becomes `shorter`, then the centre is cut out."""
    height, width = images.shape[2:]
    if (height, width) == (size, size):
        return images
    factor = shorter / min(height, width)
    scaled = (max(size, round(height * factor)), max(size, round(width * factor)))
    images = interpolate(images, scaled, mode="bilinear", antialias=True, align_corners=False)
    top, left = (scaled[0] - size) // 2, (scaled[1] - size) // 2
    return images[:, :, top : top + size, left : left + size]


def at_once(device: torch.device, size: int) -> int:
    """Images in a batch: few on the CPU, for its memory; many small ones on a GPU, where it is launches that count."""
    return 500 if device.type == "cpu" else max(250, min(4000, 2**22 // size**2))


@torch.no_grad()
def features(
    network: Callable[[Tensor], Tensor],
    batches: Iterable[Tensor],
    recipe: Recipe,
    device: torch.device | str = "cpu",
) -> Tensor:
    """(N, width) on `device`: uint8 batches (B, 3, H, W), not augmented, of the size and normalised as in training."""
    made = []
    for pixels in batches:
        x = as_in_evaluation(pixels.to(device), recipe)
        made.append(network(x.contiguous(memory_format=torch.channels_last)).float())
    return torch.cat(made)
