"""Views of images: augmentation as a batched function of (images, index, seed, epoch, view).

>>> import torch
>>> images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
>>> make = Views.named("simclr-cifar")
>>> make.train(images, torch.arange(4), seed=0, epoch=1)[0].shape
torch.Size([2, 4, 3, 32, 32])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from torch import Tensor

from contrapose.lab.modalities.images.views import operations
from contrapose.lab.modalities.images.views.recipe import Recipe
from contrapose.lab.modalities.images.views.recipes import LOCAL, RECIPES
from contrapose.lab.modalities.source import AUGMENTATIONS
from contrapose.validate import check_known

__all__ = ["LARGEST", "RECIPES", "Recipe", "Views"]

# In pixels. Local crops of the smallest views still have the 3 pixels that a blur needs; the upper limit catches typing
# errors.
_SMALLEST, LARGEST = 8, 1024


@dataclass(frozen=True)
class Views:
    """The augmentation recipe of each view; consecutive views of one size are returned in one tensor."""

    recipes: tuple[Recipe, ...]

    @classmethod
    def named(cls, name: str, count: int = 2, *, size: int | None = None, **changes: object) -> Views:
        """Return `count` views by the name of a recipe; `size` and `changes` replace fields of the recipe.

        "byol" alternates between its two recipes; "a+local8" adds eight local crops to the views of recipe a (multi-crop).
        """
        name, _, local_count = name.partition("+local")
        check_known("views", name, RECIPES)
        if count < 1:
            raise ValueError(f"views: expected at least one view, got {count}")
        if local_count and not local_count.isdigit():
            raise ValueError(f"views: expected a number of local crops after '+local', got {local_count!r}")
        if size is not None and not _SMALLEST <= size <= LARGEST:
            raise ValueError(
                f"size: expected {_SMALLEST} to {LARGEST} pixels, or 0 for the recipe's own size, got {size}"
            )
        cycle = [recipe if size is None else recipe.at(size) for recipe in RECIPES[name]]
        recipes = [replace(cycle[v % len(cycle)], **changes) for v in range(count)]  # type: ignore[arg-type]
        # As in SwAV and DINO: 96 pixels for views of 224
        local = replace(recipes[0].at(round(recipes[0].size * 96 / 224)), **LOCAL.get(name, LOCAL[""]))
        return cls((*recipes, *[local] * int(local_count or 0)))

    @property
    def count(self) -> int:
        """Number of views, local crops included."""
        return len(self.recipes)

    def train(self, raw: Tensor, index: Tensor, *, seed: int | Tensor, epoch: int | Tensor) -> list[Tensor]:
        """Augment uint8 images (B, 3, H, W); return one tensor (V, B, 3, size, size) per view size, in recipe order."""
        return self.finish(self.crop(raw, index, seed=seed, epoch=epoch), index, seed=seed, epoch=epoch)

    def draw(self, raw: Tensor, index: Tensor, *, seed: int | Tensor, epoch: int | Tensor) -> Tensor:
        """Return one random view (B, 3, size, size) of uint8 images (B, 3, H, W) by the first recipe."""
        return self.recipes[0](raw, index, seed, epoch, 0)

    def plain(self, raw: Tensor) -> Tensor:
        """Return evaluation inputs (B, 3, size, size) of uint8 images (B, 3, H, W), only resized, cropped and normalised."""
        return self.recipes[0].plain(raw)

    def light(self, augment: str = "crops", *, smallest: float | None = 0.2) -> Views:
        """Return one view with only a part of the augmentation, as in supervised training.

        augment    "crops": random crops and flips; "flips": the whole image, flipped or not; "colours": the whole image with
                   the recipe's jitter and grayscale; "jittered": crops and flips with strong jitter and grayscale
        smallest   smallest share of the image's area in a crop; None: the recipe's
        """
        check_known("augment", augment, AUGMENTATIONS)
        own = self.recipes[0]
        recipe = Recipe(own.size, jitter=None, gray=0.0, flip=0.0, mean=own.mean, std=own.std, shorter=own.shorter)
        # A square box with the whole area is the image itself, or the centre of an image that is not square.
        least = own.scale[0] if smallest is None else smallest
        scale, ratio = ((least, 1.0), own.ratio) if augment in ("crops", "jittered") else ((1.0, 1.0), (1.0, 1.0))
        recipe = replace(recipe, scale=scale, ratio=ratio)
        if augment == "colours":
            return Views((replace(recipe, jitter=own.jitter, jitter_chance=own.jitter_chance, gray=own.gray),))
        if augment == "jittered":
            recipe = replace(recipe, jitter=(0.4, 0.4, 0.4, 0.4), jitter_chance=1.0, gray=0.2)
        # The recipe's flip probability is kept, since it is 0 if mirroring changes the class (digits).
        return Views((replace(recipe, flip=own.flip),))

    def evaluation_batch(self, device: torch.device) -> int:
        """Return the batch size for evaluation on this device."""
        # On a CPU, batches are small to save memory; on a GPU, batches of small images are large, since kernel launches
        # dominate.
        return 500 if device.type == "cpu" else max(250, min(4000, 2**22 // self.recipes[0].size ** 2))

    def crop(self, images: Tensor, index: Tensor, *, seed: int | Tensor, epoch: int | Tensor) -> list[Tensor]:
        """Crop whole images, which is the first step of each view; return one tensor (B, 3, size, size) per view."""
        return [recipe.crop(images, index, seed, epoch, view) for view, recipe in enumerate(self.recipes)]

    def crop_one(self, image: Tensor, index: int, *, seed: int, epoch: int) -> list[Tensor]:
        """Crop one image (3, H, W) on the CPU; return one tensor (3, size, size) per view."""
        return [recipe.crop_one(image, index, seed, epoch, view) for view, recipe in enumerate(self.recipes)]

    def crop_each(self, images: Sequence[Tensor], indices: Sequence[int], *, seed: int, epoch: int) -> list[Tensor]:
        """Crop images of different sizes (3, H, W) on a GPU; return one tensor (B, 3, size, size) per view."""
        from contrapose.lab.modalities.images.views import kernels

        # Boxes are computed on the CPU, so that they are the same to the bit as those of images that workers crop.
        index, shape = torch.tensor(indices), torch.tensor([image.shape[1:] for image in images])
        boxes = [recipe.boxes(index, seed, epoch, view, shape=shape) for view, recipe in enumerate(self.recipes)]
        pixels, places = kernels.places_among(images)
        on_device = torch.stack([torch.stack(box) for box in boxes]).to(pixels.device)
        return [
            kernels.crop(pixels, places, tuple(box), recipe.size, cubic=recipe.cubic)
            for box, recipe in zip(on_device, self.recipes, strict=True)
        ]

    def plain_each(self, images: Sequence[Tensor]) -> Tensor:
        """Return the evaluation inputs (B, 3, size, size) of images of different sizes (3, H, W) on a GPU."""
        from contrapose.lab.modalities.images.views import kernels

        recipe = self.recipes[0]
        boxes = torch.tensor([recipe.plain_window(*image.shape[1:]) for image in images])
        pixels, places = kernels.places_among(images)
        inputs = kernels.resample(pixels, places, boxes.to(pixels.device), recipe.size)
        return operations.normalize(inputs, recipe.mean, recipe.std)

    def uses_kernels(self, device: torch.device) -> bool:
        """Return whether kernels make the views on this device."""
        return any(recipe.kernels(device) is not None for recipe in self.recipes)

    def finish(self, crops: list[Tensor], index: Tensor, *, seed: int | Tensor, epoch: int | Tensor) -> list[Tensor]:
        """Apply the steps after the crop to a batch; the result has the same form as that of `train`."""
        views = [r.finish(x, index, seed, epoch, v) for v, (r, x) in enumerate(zip(self.recipes, crops, strict=True))]
        return [torch.stack(list(group)) for _, group in groupby(views, key=lambda x: x.shape[-1])]
