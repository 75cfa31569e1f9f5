"""How an image becomes an encoder's input: a description for exported files, applied to image files and PIL images."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from contrapose.lab.modalities.images.decoding import Problem, as_rgb, attempt, crop_square, decode_square
from contrapose.lab.modalities.images.views import LARGEST, Recipe, Views
from contrapose.lab.modalities.stored_files import StoredFile

_EXPECTED = "expected uint8 images (B, 3, H, W), or a list of paths or PIL images"


@dataclass(frozen=True)
class InputDescription:
    """The steps of evaluation: resize the shorter side, crop the centre, scale to [0, 1] and normalise."""

    size: int  # width and height of the input
    resize: int  # shorter side before the crop
    mean: tuple[float, ...]  # one value per channel
    std: tuple[float, ...]

    @classmethod
    def of(cls, views: Views) -> InputDescription:
        """Return the evaluation inputs of these views."""
        recipe = views.recipes[0]
        return cls(recipe.size, recipe.resized, recipe.mean, recipe.std)

    def metadata(self) -> dict[str, str]:
        """Return the steps as strings, with lists as JSON."""
        return {
            "size": str(self.size),
            "resize": str(self.resize),
            "interpolation": "bilinear",
            "channels": "RGB",
            "mean": json.dumps(self.mean),
            "std": json.dumps(self.std),
        }

    @classmethod
    def read(cls, metadata: Mapping[str, str]) -> InputDescription:
        """Return the steps described in `metadata`; raise ValueError if anything is missing or not a number."""
        missing = [name for name in ("size", "resize", "mean", "std") if name not in metadata]
        if missing:
            raise ValueError(f"its metadata has no {', '.join(missing)}")
        try:
            mean, std = (tuple(float(value) for value in json.loads(metadata[name])) for name in ("mean", "std"))
            description = cls(int(metadata["size"]), int(metadata["resize"]), mean, std)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise ValueError(f"its metadata has a size, resize, mean or std that is not a number ({error})") from error
        largest = 2 * LARGEST  # images are resized to somewhat more than the size of the views
        usable = len(mean) == len(std) == 3 and all(map(math.isfinite, mean + std)) and min(std) > 0
        if not usable or not 0 < description.size <= description.resize <= largest:
            raise ValueError(f"its metadata does not describe an image: {description}")
        return description

    @property
    def views(self) -> Views:
        """Views for evaluation, without the augmentation of training."""
        return Views((Recipe(self.size, shorter=self.resize, mean=self.mean, std=self.std),))  # type: ignore[arg-type]

    def __str__(self) -> str:
        return (
            f"RGB images, shorter side resized to {self.resize} pixels (bilinear), centre-cropped to {self.size} × {self.size}, "
            f"scaled to [0, 1], normalised with mean {self.mean} and standard deviation {self.std}"
        )


def decode(samples: Tensor | Sequence[Any], views: Views) -> Tensor:
    """Return uint8 images (B, 3, H, W): tensors unchanged, files and PIL images resized as in evaluation."""
    if isinstance(samples, Tensor):
        if samples.dtype != torch.uint8 or samples.ndim != 4 or samples.shape[1] != 3:
            raise ValueError(f"samples: {_EXPECTED}, got {samples.dtype} of shape {tuple(samples.shape)}")
        return samples
    return torch.stack([_decode(sample, views.recipes[0]) for sample in samples])


def _decode(sample: Any, recipe: Recipe) -> Tensor:
    """Return one file or PIL image as the square that evaluation uses; `views.plain` crops the square to its size."""
    from PIL import Image

    if isinstance(sample, str | Path | StoredFile):
        read = partial(decode_square, size=recipe.size, resized=recipe.resized)
        decoded = attempt(read, Path(sample) if isinstance(sample, str) else sample)
        if isinstance(decoded, Problem):
            raise ValueError(f"samples: {sample} cannot be read: {decoded.why}")
        return decoded
    if not isinstance(sample, Image.Image):
        raise ValueError(f"samples: {_EXPECTED}, got a list with {type(sample).__name__}")
    return crop_square(as_rgb(sample), size=recipe.size, resized=recipe.resized)
