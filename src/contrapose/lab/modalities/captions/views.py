"""Views of images with captions: one random crop of the image, and one of its captions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contrapose.lab.modalities.images.views import Views
from contrapose.lab.modalities.text.views import TextViews
from contrapose.randomness import uniform

_CAPTION = 2  # the last random key: crops and dropout use the keys before it


class CaptionedBatch(NamedTuple):
    """Raw images with captions: each image has `number` rows in `captions`, from row `first` on."""

    pixels: Tensor  # uint8 (B, 3, H, W)
    captions: Tensor  # (T, L) tokens of all captions in the data set
    first: Tensor  # (B,)
    number: Tensor  # (B,) number of captions


@dataclass(frozen=True)
class CaptionViews:
    """A view of each image and one of its captions, drawn at random in each epoch."""

    images: Views
    texts: TextViews

    @property
    def count(self) -> int:
        """Two: an image and a caption."""
        return 2

    def train(self, raw: Any, index: Tensor, *, seed: int | Tensor, epoch: int | Tensor) -> list[Tensor]:
        """Return views of a captioned batch: images (1, B, 3, size, size) and tokens (1, B, 2, L)."""
        images = self.images.train(raw.pixels, index, seed=seed, epoch=epoch)
        return [*images, *self.train_texts(raw.captions, raw.first, raw.number, index, seed=seed, epoch=epoch)]

    def train_texts(
        self, captions: Tensor, first: Tensor, number: Tensor, index: Tensor, *, seed: int | Tensor, epoch: int | Tensor
    ) -> list[Tensor]:
        """Return a random caption per sample as tokens (1, B, 2, L); the arguments are fields of a captioned batch."""
        draw = uniform(index, 1, seed, epoch, _CAPTION)[:, 0]
        # In float32, the product of a draw close to 1 and the number may be rounded up to the number.
        chosen = first + torch.minimum((draw * number).long(), number - 1)
        return self.texts.train(captions[chosen][:, None], index, seed=seed, epoch=epoch)

    def draw(self, raw: Any, index: Tensor, *, seed: int | Tensor, epoch: int | Tensor) -> Tensor:
        """Return one random view of the images."""
        return self.images.draw(raw.pixels, index, seed=seed, epoch=epoch)

    def plain(self, raw: Any) -> Tensor:
        """Return the images, without augmentation."""
        return self.images.plain(raw.pixels)

    def light(self, augment: str = "crops", *, smallest: float | None = 0.2) -> Views:
        """Return mild views of the images."""
        return self.images.light(augment, smallest=smallest)

    def evaluation_batch(self, device: torch.device) -> int:
        """Return the batch size for evaluation."""
        return self.images.evaluation_batch(device)

    def uses_kernels(self, device: torch.device) -> bool:
        """Return whether kernels make the images on this device."""
        return self.images.uses_kernels(device)
