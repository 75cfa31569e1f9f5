"""`Recipe`: the operations of an augmentation, their strengths and their probabilities."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from contrapose.lab.modalities.images.views import operations as ops
from contrapose.randomness import bits, uniform
from contrapose.reduce.hardware import has_kernels

_TRIES = 10  # random boxes before the crop falls back to the centre, as in torchvision
_NUMBERS = 17  # random numbers that all operations after the crop use together
_SMALL = 64  # pixels; up to this size, torch's operations are used, which training compiles
_CROP, _REST, _NOISE = range(3)  # the last random key, so that the steps of a view use independent numbers


@dataclass(frozen=True)
class Recipe:
    """Crop, flip, jitter, grayscale, blur, solarize, invert, rotate, cut out, add noise and normalise, in this order.

    Flipping commutes in distribution with the operations that follow, so its position in a paper's list does not matter.
    """

    size: int = 32
    scale: tuple[float, float] = (0.2, 1.0)  # range of the crop's share of the area
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    cubic: bool = False
    flip: float = 0.5
    jitter: tuple[float, float, float, float] | None = (0.4, 0.4, 0.4, 0.1)  # brightness, contrast, saturation, hue
    jitter_chance: float = 0.8
    gray: float = 0.2
    blur: float = 0.0
    sigma: tuple[float, float] = (0.1, 2.0)
    solarize: float = 0.0
    invert: float = 0.0
    rotate: float = 0.0
    degrees: float = 30.0
    cutout: float = 0.0
    noise: float = 0.0
    deviation: float = 0.05
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    shorter: int = 0  # shorter side of resized test images before the centre crop; 0: see `resized`

    @property
    def resized(self) -> int:
        """The shorter side of a resized test image before its centre crop: 256 for views of 224 pixels."""
        # No margin up to 64 pixels: the papers evaluate small images without a crop.
        return self.shorter or (self.size if self.size <= 64 else round(self.size * 8 / 7))

    def at(self, size: int) -> Recipe:
        """Return the recipe for views of another size, with the same share of a test image cropped."""
        return replace(self, size=size, shorter=round(self.shorter * size / self.size))

    def __call__(self, images: Tensor, index: Tensor, *keys: int | Tensor) -> Tensor:
        """Return one view of each image, uint8 (B, 3, H, W) -> float (B, 3, size, size), a function of index and keys."""
        return self.finish(self.crop(images, index, *keys), index, *keys)

    def crop(self, images: Tensor, index: Tensor, *keys: int | Tensor) -> Tensor:
        """Crop, resize and flip images of one size, uint8 (B, 3, H, W) -> float (B, 3, size, size) in [0, 1]."""
        boxes = self.boxes(index, *keys, shape=images.shape[2:])
        kernels = self.kernels(images.device)
        if kernels is None:
            return ops.crop_resize(images.float() / 255, *boxes, self.size, cubic=self.cubic)
        pixels, places = images.flatten(), kernels.places_of(images)
        cropped: Tensor = kernels.crop(pixels, places, boxes, self.size, cubic=self.cubic)
        return cropped

    def crop_one(self, image: Tensor, index: int, *keys: int) -> Tensor:
        """Do the same with one image (3, H, W) on the CPU, to float (3, size, size)."""
        boxes = self.boxes(torch.tensor([index]), *keys, shape=image.shape[1:])
        top, left, height, width, flip = (int(value) for value in boxes)
        box = image[:, top : top + height, left : left + width]
        return ops.resize_one(box, self.size, flip=bool(flip), cubic=self.cubic)

    def finish(self, x: Tensor, index: Tensor, *keys: int | Tensor) -> Tensor:
        """Apply the operations after the crop to a batch."""
        # Random numbers are consumed in the order of the operations, so the order of the lines below determines the results.
        u = iter(uniform(index, _NUMBERS, *keys, _REST).unbind(1))
        kernels = self.kernels(x.device)
        order, factors, gray = self._colours(next(u), [next(u) for _ in range(5)], next(u))
        if kernels is not None:
            x = kernels.jitter(x, order, factors, gray)
        else:
            x = ops.jitter(x, order, factors, [bool(strength) for strength in self.jitter or (0.0,) * 4])
            x = ops.where(gray, ops.grayscale, x) if self.gray else x
        if self.blur:
            sigma = self.sigma[0] + (self.sigma[1] - self.sigma[0]) * next(u)
            chosen = next(u) < self.blur
            if kernels is not None:
                x = kernels.blur(x, torch.where(chosen, sigma, 0.0), self.blur_width)
            else:
                x = ops.where(chosen, lambda i, s: ops.blur(i, s, self.blur_width), x, sigma)
        if self.solarize:
            x = ops.where(next(u) < self.solarize, ops.solarize, x)
        if self.invert:
            x = ops.where(next(u) < self.invert, ops.invert, x)
        if self.rotate:
            x = ops.where(next(u) < self.rotate, ops.rotate, x, self.degrees * (2 * next(u) - 1))
        if self.cutout:
            x = ops.where(next(u) < self.cutout, ops.cutout, x, next(u), next(u))
        if self.noise:
            x = ops.where(next(u) < self.noise, self._noisy, x, bits(index, *keys, _NOISE))
        return x if (self.mean, self.std) == ((0.0,) * 3, (1.0,) * 3) else ops.normalize(x, self.mean, self.std)

    def kernels(self, device: torch.device) -> ModuleType | None:
        """Return the module with the kernels that crop, jitter and blur on this device; None if torch's operations do."""
        if self.size <= _SMALL or not has_kernels(device):
            return None
        from contrapose.lab.modalities.images.views import kernels

        return kernels

    def plain(self, images: Tensor) -> Tensor:
        """Return evaluation inputs (B, 3, size, size) of uint8 images (B, 3, H, W), only resized, cropped and normalised."""
        return ops.normalize(ops.centre_crop(images.float() / 255, self.size, self.resized), self.mean, self.std)

    def plain_window(self, height: int, width: int) -> tuple[float, ...]:
        """Return how `kernels.resample` makes the evaluation input of an image of this size: a row of its `boxes`."""
        rows, columns = ops.resized_shape(height, width, self.resized)
        first = ops.centre_start(rows, self.size), ops.centre_start(columns, self.size)
        return 0.0, 0.0, float(height), float(width), float(rows), float(columns), *map(float, first), 0.0

    @property
    def blur_width(self) -> int:
        """The odd width of the blur's kernel, a tenth of the image and at least 3: 23 for 224 pixels, as in SimCLR."""
        return max(3, int(self.size * 0.1) | 1)

    def boxes(
        self, index: Tensor, *keys: int | Tensor, shape: Sequence[int] | Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return (top, left, height, width) of each image's crop, and whether it is mirrored.

        shape   height and width of all images, or of each, (B, 2)
        """
        u = uniform(index, 2 * _TRIES + 3, *keys, _CROP)
        return *self.boxes_from(u[:, : 2 * _TRIES], u[:, -3], u[:, -2], shape), u[:, -1] < self.flip

    def boxes_from(
        self, tries: Tensor, u_top: Tensor, u_left: Tensor, shape: Sequence[int] | Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return boxes from random numbers, distributed as in torchvision's RandomResizedCrop.

        Ten boxes of random area and aspect ratio are tried. The first box that fits is used, or else the largest centre crop.
        """
        areas, ratios = tries[:, ::2], tries[:, 1::2]
        if isinstance(shape, Tensor):
            full_h, full_w = shape.float().T[:, :, None]
            centre: Iterable[Any] = torch.tensor([self._centre_box(h, w) for h, w in shape.tolist()]).float().T
        else:  # no tensor is made of a shape that all images have, since a captured step cannot copy it to a GPU
            full_h, full_w = shape
            centre = self._centre_box(full_h, full_w)
        area = full_h * full_w * (self.scale[0] + (self.scale[1] - self.scale[0]) * areas)
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        ratio = torch.exp(low + (high - low) * ratios)
        width, height = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
        # All ten boxes are computed for every image: stopping at the first box that fits would need a loop over images.
        fits = (width > 0) & (width <= full_w) & (height > 0) & (height <= full_h)
        first = fits.to(torch.uint8).argmax(1, keepdim=True)
        width, height = width.gather(1, first), height.gather(1, first)
        top = (u_top[:, None] * (full_h - height + 1)).floor()
        left = (u_left[:, None] * (full_w - width + 1)).floor()
        any_fits = fits.any(1)
        top, left, height, width = (
            torch.where(any_fits, drawn[:, 0], fallback)
            for drawn, fallback in zip((top, left, height, width), centre, strict=True)
        )
        return top, left, height, width

    def _centre_box(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Return (top, left, height, width) of the largest centre crop whose aspect ratio is allowed."""
        aspect = min(max(width / height, self.ratio[0]), self.ratio[1])
        wide, tall = min(width, round(height * aspect)), min(height, round(width / aspect))
        return (height - tall) // 2, (width - wide) // 2, tall, wide

    def _colours(self, u_jitter: Tensor, u: list[Tensor], u_gray: Tensor) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Return the operations of the jitter in each image's order, their parameters, and whether an image becomes gray."""
        strength = self.jitter or (0.0,) * 4
        jittered = u_jitter < (self.jitter_chance if self.jitter else 0.0)
        # As in torchvision, each image has its own order of operations.
        order = [torch.where(jittered, number, ops.NO_OPERATION) for number in _nth_permutation((u[4] * 24).long())]
        factors = [self._factor(u[i], strength[i]) for i in range(3)] + [strength[3] * (2 * u[3] - 1)]
        return order, factors, u_gray < self.gray

    @staticmethod
    def _factor(u: Tensor, strength: float) -> Tensor:
        """Return factors between 1 - strength, at least 0, and 1 + strength."""
        low = max(0.0, 1 - strength)
        return low + (1 + strength - low) * u

    def _noisy(self, images: Tensor, key: Tensor) -> Tensor:
        """Add Gaussian noise, a function of each image's key."""
        # Box-Muller from counter-based uniforms: torch.randn would depend on the composition of the batch.
        u = uniform(key, 2 * images[0].numel()).unflatten(1, (2, *images.shape[1:]))
        # log1p(-u) is finite for u in [0, 1), whereas log(u) is not at 0.
        normal = torch.sqrt(-2 * torch.log1p(-u[:, 0])) * torch.cos(2 * math.pi * u[:, 1])
        return (images + self.deviation * normal).clamp(0, 1)


def _nth_permutation(k: Tensor) -> list[Tensor]:
    """Return the elements of the k-th permutation of 0, 1, 2, 3 in lexicographic order, from 0123 to 3210."""
    # Each digit of k in the factorial number system is an index among the unused elements.
    first, second, third = k // 6, k % 6 // 2, k % 2
    second = second + (second >= first)
    low, high = torch.minimum(first, second), torch.maximum(first, second)
    third = third + (third >= low)
    third = third + (third >= high)
    return [first, second, third, 6 - first - second - third]
