"""Image data sets in memory."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from contrapose.lab.modalities.images.decoding import ImagePath
from contrapose.lab.modalities.images.file_list import CompactList
from contrapose.lab.modalities.source import Reader, ViewMaker

MOST_CLASSES = 1_000_000  # counting the images per class takes memory for each number up to the largest label


@dataclass(frozen=True, eq=False)
class Images:
    """uint8 images of one size, with labels if the data set has any."""

    name: str
    pixels: Tensor  # uint8 (N, 3, H, W)
    labels: Tensor | None  # int64 (N,)
    classes: tuple[str, ...] = ()
    paths: Sequence[ImagePath] = ()  # the file of each image, if every image was read from its own file
    ids: Tensor | None = None  # (N,) equal for images that are never negatives of each other

    def __post_init__(self) -> None:
        if self.pixels.dtype != torch.uint8 or self.pixels.ndim != 4 or self.pixels.shape[1] != 3:
            actual = f"{self.pixels.dtype} {tuple(self.pixels.shape)}"
            raise ValueError(f"{self.name}: expected uint8 images of shape (N, 3, H, W), got {actual}")
        if self.labels is not None and self.labels.shape != (len(self.pixels),):
            raise ValueError(
                f"{self.name}: expected one label per image ({len(self.pixels)},), got {tuple(self.labels.shape)}"
            )

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def size(self) -> int:
        """Height of the images, in pixels."""
        return int(self.pixels.shape[2])

    @property
    def fingerprint(self) -> str:
        """A checksum that identifies the images: of their file names if there are any, else of their pixels."""
        # For files, names are used instead of pixels, so that a folder has the same fingerprint in memory and streamed.
        return fingerprint(self.paths) if self.paths else f"{zlib.crc32(self.pixels.contiguous().numpy().data):08x}"

    def subset(self, index: Tensor | Sequence[int]) -> Images:
        """Return the images at these indices, in this order."""
        indices = torch.as_tensor(index, dtype=torch.long)
        labels = None if self.labels is None else self.labels[indices]
        paths = take_paths(self.paths, indices) if self.paths else ()
        return replace(self, pixels=self.pixels[indices], labels=labels, paths=paths)

    def counts(self) -> list[int]:
        """Return the number of images in each class."""
        return class_counts(self.name, self.labels, self.classes)

    def in_memory(self, views: ViewMaker) -> Images:
        """Return the images themselves, which are in memory already."""
        return self

    def reader(self, views: ViewMaker, device: torch.device, *, workers: int, timeout: float) -> Reader:
        """Move the images to the device and return their reader."""
        # All images are moved at once: every epoch reads every image, and copying batches would cost a transfer per step.
        return ResidentImages(self.pixels.to(device), views)


@dataclass(frozen=True, eq=False)
class ResidentImages:
    """Images that are resident on the device, and the view maker that augments them."""

    resident: Tensor  # uint8 (N, 3, H, W)
    views: ViewMaker

    def train(self, batches: Sequence[list[int]], *, seed: int, epoch: int) -> Iterator[list[Tensor]]:
        """Yield the views of each batch of indices."""
        for batch in batches:
            index = torch.as_tensor(batch, device=self.resident.device)
            yield self.views.train(self.resident[index], index, seed=seed, epoch=epoch)

    def plain(self) -> Iterator[Tensor]:
        """Yield the evaluation inputs of all images, in batches."""
        for part in self.resident.split(self.views.evaluation_batch(self.resident.device)):
            yield self.views.plain(part)


def fingerprint(paths: Sequence[ImagePath]) -> str:
    """Return a checksum of the names of files and of their parent folders or tars."""
    # Whole paths are not used, so that a data set keeps its fingerprint when it is moved.
    if isinstance(paths, CompactList):
        names = "\n".join(paths.short_names())
    else:
        names = "\n".join(f"{path.parent.name}/{path.name}" for path in paths)
    return f"{zlib.crc32(os.fsencode(names)):08x}"


def take_paths(paths: Sequence[ImagePath], indices: Tensor) -> Sequence[ImagePath]:
    """Return the paths at these indices, in this order."""
    return paths.take(indices) if isinstance(paths, CompactList) else tuple(paths[i] for i in indices.tolist())


def class_counts(name: str, labels: Tensor | None, classes: tuple[str, ...]) -> list[int]:
    """Return the number of samples in each class, 0 for a class without samples."""
    if labels is None:
        raise ValueError(f"{name}: this needs labels, but the data set has none")
    return torch.bincount(labels, minlength=max(len(classes), int(labels.max()) + 1)).tolist()


def channels_first(pixels: Tensor) -> Tensor:
    """Move channels first and repeat a gray channel: (N, H, W), (N, H, W, 1) or (N, H, W, 3) -> (N, 3, H, W)."""
    pixels = pixels[..., None] if pixels.ndim == 3 else pixels
    pixels = pixels.expand(*pixels.shape[:3], 3) if pixels.shape[3] == 1 else pixels
    return pixels.permute(0, 3, 1, 2).contiguous()
