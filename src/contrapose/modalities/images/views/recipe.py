"""A recipe of augmentation: what happens to an image, and the chances."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from contrapose.modalities.images.views import operations as ops
from contrapose.randomness import bits, uniform

_TRIES = 10  # of a random box before the crop falls back to the centre, as in torchvision
_NUMBERS = 17  # that all operations after the crop need together
_CROP, _REST, _NOISE = range(3)  # the last key: which part of a view the numbers are for


@dataclass(frozen=True)
class Recipe:
    """Crop and mirror, jitter, gray, blur, solarize, invert, turn, cut out, add noise, normalise: in that order.

    Mirroring commutes with all that follows, so its place in a paper's list does not matter.
    """

    size: int = 32
    scale: tuple[float, float] = (0.2, 1.0)  # share of the area that is cropped
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
    shorter: int = 0  # side of test images of another size, before the centre is cut out; 0: 8/7 of the size

    @property
    def resized(self) -> int:
        """What a test image's shorter side becomes: 256 where views have 224 pixels."""
        return self.shorter or round(self.size * 8 / 7)

    def __call__(self, images: Tensor, index: Tensor, *keys: int | Tensor) -> Tensor:
        """One view of each image: uint8 (B, 3, H, W) -> float (B, 3, size, size), decided by index and keys."""
        return self.finish(self.crop(images, index, *keys), index, *keys)

    def crop(self, images: Tensor, index: Tensor, *keys: int | Tensor) -> Tensor:
        """The first part, which needs the whole image: what workers do with large files."""
        u = uniform(index, 2 * _TRIES + 3, *keys, _CROP)
        boxes = self.boxes(u[:, : 2 * _TRIES], u[:, -3], u[:, -2], images.shape[2:])
        return ops.crop_resize(images.float() / 255, *boxes, u[:, -1] < self.flip, self.size, cubic=self.cubic)

    def finish(self, x: Tensor, index: Tensor, *keys: int | Tensor) -> Tensor:
        """The rest, on the whole batch."""
        u = iter(uniform(index, _NUMBERS, *keys, _REST).unbind(1))
        x = self._colour(x, next(u), [next(u) for _ in range(5)], next(u))
        if self.blur:
            sigma = self.sigma[0] + (self.sigma[1] - self.sigma[0]) * next(u)
            x = ops.where(next(u) < self.blur, lambda i, s: ops.blur(i, s, self.kernel), x, sigma)
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

    def plain(self, images: Tensor) -> Tensor:
        """uint8 (B, 3, H, W) -> what a network sees in evaluation: not augmented, of the recipe's size, normalised."""
        return ops.normalize(ops.centre(images.float() / 255, self.size, self.resized), self.mean, self.std)

    @property
    def kernel(self) -> int:
        """A tenth of the image, odd: 23 at 224, as SimCLR has it; 3 at least."""
        return max(3, int(self.size * 0.1) | 1)

    def boxes(
        self, tries: Tensor, u_top: Tensor, u_left: Tensor, shape: tuple[int, ...]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(top, left, height, width) of each crop, distributed as torchvision's RandomResizedCrop.

        Ten boxes of random area and aspect are tried; the first that fits is taken, else the largest in the centre.
        """
        full_h, full_w = shape
        areas, ratios = tries[:, ::2], tries[:, 1::2]
        area = full_h * full_w * (self.scale[0] + (self.scale[1] - self.scale[0]) * areas)
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        ratio = torch.exp(low + (high - low) * ratios)
        width, height = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
        fits = (width > 0) & (width <= full_w) & (height > 0) & (height <= full_h)
        first = fits.to(torch.uint8).argmax(1, keepdim=True)
        width, height = width.gather(1, first)[:, 0], height.gather(1, first)[:, 0]
        top = (u_top * (full_h - height + 1)).floor()
        left = (u_left * (full_w - width + 1)).floor()
        aspect = min(max(full_w / full_h, self.ratio[0]), self.ratio[1])
        wide, tall = min(full_w, round(full_h * aspect)), min(full_h, round(full_w / aspect))
        centre = ((full_h - tall) // 2, (full_w - wide) // 2, tall, wide)
        some = fits.any(1)
        top, left, height, width = (
            torch.where(some, drawn, torch.full_like(drawn, other))
            for drawn, other in zip((top, left, height, width), centre, strict=True)
        )
        return top, left, height, width

    def _colour(self, x: Tensor, chance: Tensor, u: list[Tensor], gray: Tensor) -> Tensor:
        if self.jitter is not None:
            order = _order((u[4] * 24).long())  # which operation comes at each place
            jittered = chance < self.jitter_chance
            steps = (
                (ops.brightness, self._factor(u[0], self.jitter[0])),
                (ops.contrast, self._factor(u[1], self.jitter[1])),
                (ops.saturation, self._factor(u[2], self.jitter[2])),
                (ops.hue, self.jitter[3] * (2 * u[3] - 1)),
            )
            for place in range(4):
                for which, (operation, parameter) in enumerate(steps):
                    if self.jitter[which]:
                        x = ops.where(jittered & (order[place] == which), operation, x, parameter)
        return ops.where(gray < self.gray, ops.grayscale, x) if self.gray else x

    @staticmethod
    def _factor(u: Tensor, strength: float) -> Tensor:
        low = max(0.0, 1 - strength)
        return low + (1 + strength - low) * u

    def _noisy(self, images: Tensor, key: Tensor) -> Tensor:
        u = uniform(key, 2 * images[0].numel()).unflatten(1, (2, *images.shape[1:]))
        normal = torch.sqrt(-2 * torch.log1p(-u[:, 0])) * torch.cos(2 * math.pi * u[:, 1])
        return (images + self.deviation * normal).clamp(0, 1)


def _order(k: Tensor) -> list[Tensor]:
    """The k-th order of 0, 1, 2, 3, from 0123 (k = 0) to 3210 (k = 23): what stands at each of four places."""
    first, second, third = k // 6, k % 6 // 2, k % 2
    second = second + (second >= first)  # of those that are left
    low, high = torch.minimum(first, second), torch.maximum(first, second)
    third = third + (third >= low)
    third = third + (third >= high)
    return [first, second, third, 6 - first - second - third]
