"""Views of images: augmentation as one batched function of (images, index, seed, epoch, view).

>>> import torch
>>> images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
>>> make = Views.named("simclr-cifar")
>>> make.train(images, torch.arange(4), seed=0, epoch=1)[0].shape
torch.Size([2, 4, 3, 32, 32])
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby

import torch
from torch import Tensor

from contrapose.modalities.images.views.recipe import Recipe
from contrapose.modalities.images.views.recipes import RECIPES
from contrapose.validate import check_known

__all__ = ["RECIPES", "Recipe", "Views"]


@dataclass(frozen=True)
class Views:
    """One recipe for each view; views of one size come back in one tensor."""

    recipes: tuple[Recipe, ...]

    @classmethod
    def named(cls, name: str, count: int = 2, *, size: int | None = None, **changes: object) -> Views:
        """`count` views by a recipe of the catalogue, with its image size or another.

        "byol" alternates its two recipes; "a+local8" adds eight local crops to the views of recipe a (multi-crop).
        """
        name, _, extra = name.partition("+local")
        check_known("views", name, RECIPES)
        if count < 1:
            raise ValueError(f"views: expected at least one view, got {count}")
        if extra and not extra.isdigit():
            raise ValueError(f"views: expected a number of local crops after '+local', got {extra!r}")
        cycle = RECIPES[name]
        if size is not None:
            changes["size"] = size
        chosen = [replace(cycle[v % len(cycle)], **changes) for v in range(count)]  # type: ignore[arg-type]
        small = replace(chosen[0], size=round(chosen[0].size * 96 / 224), scale=(0.05, 0.4))
        return cls((*chosen, *[small] * int(extra or 0)))

    @property
    def count(self) -> int:
        """Number of views, local crops included."""
        return len(self.recipes)

    def train(self, raw: Tensor, index: Tensor, *, seed: int | Tensor, epoch: int | Tensor) -> list[Tensor]:
        """uint8 images (B, 3, H, W) -> one tensor (V, B, 3, size, size) for each image size, in the recipes' order."""
        return self.finish(self.crop(raw, index, seed=seed, epoch=epoch), index, seed=seed, epoch=epoch)

    def draw(self, raw: Tensor, index: Tensor, *, seed: int | Tensor, epoch: int | Tensor) -> Tensor:
        """uint8 images (B, 3, H, W) -> one random view of each (B, 3, size, size) by the first recipe."""
        return self.recipes[0](raw, index, seed, epoch, 0)

    def plain(self, raw: Tensor) -> Tensor:
        """uint8 images (B, 3, H, W) -> what a network sees in evaluation: not augmented, of its size, normalised."""
        return self.recipes[0].plain(raw)

    def light(self) -> Views:
        """One view with crops and mirrors alone, as in supervised training."""
        recipe = self.recipes[0]
        kept = {"flip": recipe.flip, "mean": recipe.mean, "std": recipe.std}
        return Views((Recipe(recipe.size, scale=(0.2, 1.0), jitter=None, gray=0.0, **kept),))  # type: ignore[arg-type]

    def evaluation_batch(self, device: torch.device) -> int:
        """Few images at a time on a CPU, to save memory; many small ones on a GPU, where launches dominate."""
        return 500 if device.type == "cpu" else max(250, min(4000, 2**22 // self.recipes[0].size ** 2))

    def crop(self, images: Tensor, index: Tensor, *, seed: int | Tensor, epoch: int | Tensor) -> list[Tensor]:
        """The part that needs whole images: one tensor (B, 3, size, size) for each view."""
        return [recipe.crop(images, index, seed, epoch, view) for view, recipe in enumerate(self.recipes)]

    def finish(self, crops: list[Tensor], index: Tensor, *, seed: int | Tensor, epoch: int | Tensor) -> list[Tensor]:
        """The rest of each view, on the whole batch."""
        made = [r.finish(x, index, seed, epoch, v) for v, (r, x) in enumerate(zip(self.recipes, crops, strict=True))]
        return [torch.stack(list(group)) for _, group in groupby(made, key=lambda x: x.shape[-1])]
