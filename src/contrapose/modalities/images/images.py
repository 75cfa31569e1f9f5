"""Images in memory: what every data set of this package becomes."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from contrapose.modalities.modality import ViewMaker


@dataclass(frozen=True, eq=False)
class Images:
    """uint8 images of one size, and their labels if they have any."""

    name: str
    pixels: Tensor  # uint8 (N, 3, H, W)
    labels: Tensor | None  # int64 (N,)
    classes: tuple[str, ...] = ()
    paths: tuple[Path, ...] = ()  # where they were read, if each was a file

    def __post_init__(self) -> None:
        if self.pixels.dtype != torch.uint8 or self.pixels.ndim != 4 or self.pixels.shape[1] != 3:
            came = f"{self.pixels.dtype} {tuple(self.pixels.shape)}"
            raise ValueError(f"{self.name}: expected uint8 images of shape (N, 3, H, W), got {came}")
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
        """Which images these are: by their files' names, where each was a file, else by their pixels."""
        return fingerprint(self.paths) if self.paths else f"{zlib.crc32(self.pixels.contiguous().numpy().data):08x}"

    def subset(self, index: Tensor | Sequence[int]) -> Images:
        """The images at these places, in this order."""
        place = torch.as_tensor(index, dtype=torch.long)
        labels = None if self.labels is None else self.labels[place]
        paths = tuple(self.paths[i] for i in place.tolist()) if self.paths else ()
        return replace(self, pixels=self.pixels[place], labels=labels, paths=paths)

    def counts(self) -> list[int]:
        """How many images each class has."""
        return class_counts(self.name, self.labels, self.classes)

    def in_memory(self, views: ViewMaker) -> Images:
        """Themselves."""
        return self

    def reader(self, views: ViewMaker, device: torch.device, *, workers: int, timeout: float) -> ResidentImages:
        """Move the images to the device, where they stay: training and evaluation read them again and again."""
        return ResidentImages(self.pixels.to(device), views)


@dataclass(frozen=True, eq=False)
class ResidentImages:
    """Images on the device, and the views that are made of them."""

    resident: Tensor  # uint8 (N, 3, H, W)
    views: ViewMaker

    def train(self, batches: Sequence[list[int]], *, seed: int, epoch: int) -> Iterator[list[Tensor]]:
        """Yield the views of each batch of indices."""
        for batch in batches:
            index = torch.as_tensor(batch, device=self.resident.device)
            yield self.views.train(self.resident[index], index, seed=seed, epoch=epoch)

    def plain(self) -> Iterator[Tensor]:
        """Yield evaluation inputs of all images."""
        for part in self.resident.split(self.views.evaluation_batch(self.resident.device)):
            yield self.views.plain(part)


def fingerprint(paths: Sequence[Path]) -> str:
    """Of the names of files and of the folders that they are in."""
    names = "\n".join(f"{path.parent.name}/{path.name}" for path in paths)
    return f"{zlib.crc32(names.encode()):08x}"


def class_counts(name: str, labels: Tensor | None, classes: tuple[str, ...]) -> list[int]:
    """How many there are of each class; names without a member count 0."""
    if labels is None:
        raise ValueError(f"{name}: this needs labels, and the data set has none")
    return torch.bincount(labels, minlength=max(len(classes), int(labels.max()) + 1)).tolist()


def channels_first(pixels: Tensor) -> Tensor:
    """(N, H, W), (N, H, W, 1) or (N, H, W, 3) -> (N, 3, H, W)."""
    pixels = pixels[..., None] if pixels.ndim == 3 else pixels
    pixels = pixels.expand(*pixels.shape[:3], 3) if pixels.shape[3] == 1 else pixels
    return pixels.permute(0, 3, 1, 2).contiguous()
