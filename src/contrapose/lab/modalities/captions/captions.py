"""`Captions`: images with one or more captions each, as a data set."""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from contrapose.lab.modalities.captions.views import CaptionedBatch, CaptionViews
from contrapose.lab.modalities.images.images import Images
from contrapose.lab.modalities.images.stream import Files
from contrapose.lab.modalities.source import ProcessReader, Reader, StagedReader, ViewMaker
from contrapose.lab.modalities.text.sentences import Sentences, TokenReader


@dataclass(frozen=True, eq=False)
class Captions:
    """Images, and the tokens of their captions: image i has `number[i]` captions, from row `first[i]` on."""

    images: Images | Files
    texts: Sentences  # one row per caption, image by image
    first: Tensor  # (N,)
    number: Tensor  # (N,) number of captions
    written: tuple[tuple[str, ...], ...]  # the captions of each image as texts
    labels: Tensor | None = None
    classes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.images)

    @property
    def name(self) -> str:
        """The name of the images."""
        return self.images.name

    @property
    def paths(self) -> Sequence[Any]:
        """The file of each image."""
        return self.images.paths

    @property
    def fingerprint(self) -> str:
        """A checksum of the images' names and of the captions."""
        return f"{zlib.crc32(repr(self.written).encode(), int(self.images.fingerprint, 16)):08x}"

    @cached_property
    def ids(self) -> Tensor | None:
        """Numbers that are equal for images with a caption in common; None if no two images share a caption."""
        owner = dict[str, int]()  # the first image that has each caption
        parent = list(range(len(self)))
        for image, captions in enumerate(self.written):
            for caption in captions:
                other = _root(parent, owner.setdefault(caption, image))
                parent[max(other, _root(parent, image))] = min(other, _root(parent, image))
        roots = torch.tensor([_root(parent, image) for image in range(len(self))])
        return None if len(roots.unique()) == len(self) else roots

    def counts(self) -> list[int]:
        """Raise ValueError: images with captions have no classes."""
        raise ValueError(f"{self.name}: this needs labels, but the data set has none")

    def subset(self, index: Tensor | Sequence[int]) -> Captions:
        """Return the images at these indices, in this order, with their captions."""
        index = torch.as_tensor(index, dtype=torch.long)
        number = self.number[index]
        rows = torch.cat(
            [torch.arange(f, f + c) for f, c in zip(self.first[index].tolist(), number.tolist(), strict=True)]
        )
        return replace(
            self,
            images=self.images.subset(index),
            texts=self.texts.subset(rows),
            first=number.cumsum(0) - number,
            number=number,
            written=tuple(self.written[i] for i in index.tolist()),
        )

    def in_memory(self, views: ViewMaker) -> Captions:
        """Decode all images."""
        assert isinstance(views, CaptionViews)
        return replace(self, images=self.images.in_memory(views.images))

    def reader(self, views: ViewMaker, device: torch.device, *, workers: int, timeout: float) -> CaptionReader:
        """Move captions, and images unless they are files, to the device."""
        assert isinstance(views, CaptionViews)
        return CaptionReader(
            images=self.images.reader(views.images, device, workers=workers, timeout=timeout),
            texts=self.texts.reader(views.texts, device, workers=0, timeout=timeout),
            first=self.first.to(device),
            number=self.number.to(device),
            views=views,
        )


def _root(parent: list[int], image: int) -> int:
    """Return the smallest index in an image's group, and compress the path to it (union-find)."""
    while parent[image] != image:
        parent[image] = parent[parent[image]]
        image = parent[image]
    return image


@dataclass(frozen=True, eq=False)
class _Resident:
    """All raw samples on the device."""

    pixels: Tensor
    captions: Tensor
    first: Tensor
    number: Tensor

    def __getitem__(self, index: Tensor) -> CaptionedBatch:
        return CaptionedBatch(self.pixels[index], self.captions, self.first[index], self.number[index])

    def __len__(self) -> int:
        return len(self.pixels)


@dataclass(frozen=True, eq=False)
class CaptionReader:
    """Images, resident or streamed, with captions on the device."""

    images: Reader
    texts: TokenReader
    first: Tensor
    number: Tensor
    views: CaptionViews

    @property
    def captions(self) -> Tensor:
        """(T, L) the tokens of all captions, on the device."""
        assert self.texts.resident is not None
        return self.texts.resident[:, 0]

    @property
    def resident(self) -> Any:
        """All raw samples on the device; None if images are streamed."""
        pixels = self.images.resident
        return None if pixels is None else _Resident(pixels, self.captions, self.first, self.number)

    def train(self, batches: Sequence[list[int]], *, seed: int, epoch: int) -> Iterator[list[Tensor]]:
        """Yield the views of each batch of indices: images, then tokens."""
        for batch, images in zip(batches, self.images.train(batches, seed=seed, epoch=epoch), strict=True):
            index = torch.as_tensor(batch, device=self.first.device)
            yield [*images, *self._texts(index, seed=seed, epoch=epoch)]

    def _texts(self, index: Tensor, *, seed: int | Tensor, epoch: int | Tensor) -> list[Tensor]:
        first, number = self.first[index], self.number[index]
        return self.views.train_texts(self.captions, first, number, index, seed=seed, epoch=epoch)

    def stage(self, batches: Sequence[list[int]], *, seed: int, epoch: int) -> Generator[list[Tensor], None, None]:
        """Yield the first stage of each batch of streamed images."""
        assert isinstance(self.images, StagedReader)
        return self.images.stage(batches, seed=seed, epoch=epoch)

    def finish(self, staged: list[Tensor], index: Tensor, *, seed: int | Tensor, epoch: int | Tensor) -> list[Tensor]:
        """Return the views of a batch: images, then tokens."""
        assert isinstance(self.images, StagedReader)
        images = self.images.finish(staged, index, seed=seed, epoch=epoch)
        return [*images, *self._texts(index, seed=seed, epoch=epoch)]

    def close(self) -> None:
        """End the processes that load images, if there are any."""
        if isinstance(self.images, ProcessReader):
            self.images.close()

    def plain(self) -> Iterator[Tensor]:
        """Yield the images without augmentation, in batches."""
        return self.images.plain()
