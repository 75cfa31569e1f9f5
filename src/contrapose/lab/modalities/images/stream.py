"""Image files that are decoded on demand: on a GPU, or by workers, which also crop. The device does the rest in batches."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

from contrapose.lab.counts import count_of, is_or_are
from contrapose.lab.cuda.prefetch import copy_pinned, prepare_ahead
from contrapose.lab.modalities.images.decoding import (
    ImagePath,
    Problem,
    attempt,
    decode,
    decode_fast,
    decode_square,
    quiet_decoders,
    read_all,
    readable,
)
from contrapose.lab.modalities.images.file_list import MemberList
from contrapose.lab.modalities.images.folder import Listing, list_images
from contrapose.lab.modalities.images.gpu_decoding import GpuDecoder, decodes_jpeg
from contrapose.lab.modalities.images.images import Images, class_counts, fingerprint, take_paths
from contrapose.lab.modalities.images.loading import Workers
from contrapose.lab.modalities.images.memory import check_memory
from contrapose.lab.modalities.images.views import Recipe, Views
from contrapose.lab.modalities.modality import DataSettings
from contrapose.lab.modalities.source import Reader, Source, Split, ViewMaker, finish_each
from contrapose.lab.workers import TIMEOUT

_BATCH = 256  # images decoded at a time

IndexedPath = tuple[int, ImagePath]  # an image's index in its data set, and its file


@dataclass(frozen=True, eq=False)
class Files:
    """Image files on disk or in shards, decoded on demand; class folders, if there are any, give the labels."""

    name: str
    paths: Sequence[ImagePath]
    labels: Tensor | None
    classes: tuple[str, ...] = ()
    ids: Tensor | None = None  # (N,) equal for images that are never negatives of each other
    max_megapixels: float = DataSettings.max_megapixels  # a larger image is refused before it is decoded

    @classmethod
    def of(cls, folder: Path, only: Sequence[str] = ()) -> Files:
        """List all images in a folder, or only the images in the classes in `only`."""
        return cls.listed(folder.name, list_images(folder, only))

    @classmethod
    def listed(cls, name: str, listing: Listing) -> Files:
        """Return the files in a listing, as a data set with this name."""
        return cls(name, listing.paths, listing.labels, listing.classes)

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def fingerprint(self) -> str:
        """A checksum of the files' names."""
        return fingerprint(self.paths)

    def subset(self, index: Sequence[int] | Tensor) -> Files:
        """Return the files at these indices, in this order."""
        indices = torch.as_tensor(index, dtype=torch.long)
        labels = None if self.labels is None else self.labels[indices]
        return replace(self, paths=take_paths(self.paths, indices), labels=labels)

    def counts(self) -> list[int]:
        """Return the number of images in each class."""
        return class_counts(self.name, self.labels, self.classes)

    def read(self, index: int) -> Tensor:
        """Decode one image as uint8 (1, 3, H, W)."""
        read = partial(decode, max_megapixels=self.max_megapixels)
        return readable(index, attempt(read, self.paths[index]))[None]

    def indexed_paths(self, indices: Sequence[int]) -> list[IndexedPath]:
        """Return the index and the path of each of these images: a worker needs nothing else."""
        # Paths are sent with each batch, so that starting a worker does not copy the whole list of files.
        return [(index, self.paths[index]) for index in indices]

    def in_memory(self, views: ViewMaker) -> Images:
        """Decode all images to the squares that evaluation uses."""
        assert isinstance(views, Views)
        recipe = views.recipes[0]
        shape = (len(self), 3, recipe.resized, recipe.resized)
        what = f"{len(self):,} images of {recipe.resized} × {recipe.resized} pixels"
        check_memory(math.prod(shape), what, "--stream or --pack leaves them on disk, and a smaller --size takes less")
        pixels, first = torch.empty(shape, dtype=torch.uint8), 0
        for batch in whole(self, recipe, batch=_BATCH, workers=0):
            pixels[first : first + len(batch)] = batch
            first += len(batch)
        return Images(self.name, pixels, self.labels, self.classes, self.paths)

    def reader(self, views: ViewMaker, device: torch.device, *, workers: int, timeout: float) -> Reader:
        """Return a reader that leaves the files on disk. A GPU decodes them if it can, and otherwise workers do."""
        assert isinstance(views, Views)
        if decodes_jpeg(device):
            return GpuDecodedImages(self, views, device, workers, timeout)
        return StreamedImages(self, views, device, workers, timeout)


@dataclass(frozen=True, eq=False)
class StreamedImages:
    """Files that workers decode and crop; the device applies the other augmentations to whole batches."""

    source: Files
    views: Views
    device: torch.device
    workers: int
    timeout: float
    resident = None  # nothing stays on the device

    @property
    def blocks(self) -> Tensor | None:
        """The shard of each image; None for files that are not in shards."""
        return self.source.paths.shard_numbers if isinstance(self.source.paths, MemberList) else None

    def train(self, batches: Sequence[list[int]], *, seed: int, epoch: int) -> Iterator[list[Tensor]]:
        """Yield the views of each batch of indices."""
        return finish_each(self, batches, self.device, seed=seed, epoch=epoch)

    def stage(self, batches: Sequence[list[int]], *, seed: int, epoch: int) -> Generator[list[Tensor], None, None]:
        """Yield the crops of each batch of indices, on the device."""
        keys = ([(seed, epoch, image) for image in self.source.indexed_paths(batch)] for batch in batches)
        return prepare_ahead(partial(copy_pinned, device=self.device), self.processes.load(keys), self.device)

    @cached_property
    def processes(self) -> Workers[list[Tensor]]:
        """The workers that decode and crop."""
        return Workers(_Crops(self.views, self.source.max_megapixels), count=self.workers, timeout=self.timeout)

    def close(self) -> None:
        """End the workers."""
        self.processes.close()

    def finish(self, staged: list[Tensor], index: Tensor, *, seed: int | Tensor, epoch: int | Tensor) -> list[Tensor]:
        """Return the views of a batch from its crops."""
        return self.views.finish(staged, index, seed=seed, epoch=epoch)

    def plain(self) -> Iterator[Tensor]:
        """Yield the evaluation inputs of all images, in batches."""
        recipe, batch_size = self.views.recipes[0], self.views.evaluation_batch(self.device)
        for pixels in whole(self.source, recipe, batch=batch_size, workers=self.workers, timeout=self.timeout):
            yield recipe.plain(pixels.to(self.device))


@dataclass(frozen=True, eq=False)
class GpuDecodedImages(StreamedImages):
    """Files that threads read and a GPU decodes and crops."""

    def close(self) -> None:
        """Do nothing: threads end with each epoch."""

    @cached_property
    def decoder(self) -> GpuDecoder:
        """The decoder of the files, which keeps their contents as far as they fit into memory."""
        return GpuDecoder(self.source.paths, self.device, self.workers, self.source.max_megapixels)

    def stage(self, batches: Sequence[list[int]], *, seed: int, epoch: int) -> Generator[list[Tensor], None, None]:
        """Yield the crops of each batch of indices, on the device."""
        return self.decoder.batches(batches, lambda x, i: self.views.crop_each(x, i, seed=seed, epoch=epoch))

    def plain(self) -> Iterator[Tensor]:
        """Yield the evaluation inputs of all images, in batches."""
        batches = _in_order(len(self.source), self.views.evaluation_batch(self.device))
        for (inputs,) in self.decoder.batches(batches, lambda images, indices: [self.views.plain_each(images)]):
            yield inputs


@dataclass(frozen=True)
class _Crops(Dataset[list[Tensor]]):
    """The crops of one image, one per view. They are a function of (seed, epoch, index, view), so any worker gives the same."""

    views: Views
    max_megapixels: float

    def __getitem__(self, key: tuple[int, int, IndexedPath]) -> list[Tensor]:
        seed, epoch, (index, path) = key
        read = partial(decode_fast, max_megapixels=self.max_megapixels)
        with quiet_decoders():
            pixels = readable(index, attempt(read, path))
        return self.views.crop_one(pixels, index, seed=seed, epoch=epoch)


@dataclass(frozen=True)
class _Squares(Dataset[Tensor]):
    """One image, decoded to the square that evaluation uses."""

    recipe: Recipe
    max_megapixels: float

    def __getitem__(self, image: IndexedPath) -> Tensor:
        with quiet_decoders():
            return readable(image[0], attempt(self.decode, image[1]))

    def decode(self, path: ImagePath) -> Tensor:
        size, resized = self.recipe.size, self.recipe.resized
        return decode_square(path, size=size, resized=resized, max_megapixels=self.max_megapixels)


def whole(source: Files, recipe: Recipe, *, batch: int, workers: int, timeout: float = TIMEOUT) -> Iterator[Tensor]:
    """Yield all images in order, as the squares that evaluation uses, in batches of uint8 (B, 3, resized, resized).

    With `workers=0`, threads in this process decode the images.
    """
    squares = _Squares(recipe, source.max_megapixels)
    batches = _in_order(len(source), batch)
    if workers:
        with closing(Workers(squares, count=workers, timeout=timeout)) as processes:
            yield from processes.load(map(source.indexed_paths, batches))
        return
    # The reader is closed at the first broken file, so that the progress bar ends before the error is printed.
    with closing(read_all(source.paths, squares.decode, "reading images")) as images:
        for indices in batches:
            yield torch.stack([readable(index, next(images)) for index in indices])


def _in_order(count: int, batch: int) -> list[list[int]]:
    """Return the numbers below `count` in batches."""
    return [list(range(first, min(first + batch, count))) for first in range(0, count, batch)]


def with_limit(split: Split, max_megapixels: float) -> Split:
    """Set the size of the largest image to read; images that are already in memory are not limited."""
    return split.map(lambda s: replace(s, max_megapixels=max_megapixels) if isinstance(s, Files) else s)


def without_broken(split: Split, recipe: Recipe) -> Split:
    """Leave out unreadable files and list them in a note. All files are decoded once to find the unreadable ones."""
    problems: list[Problem] = []

    def keep_readable(source: Source) -> Source:
        if not isinstance(source, Files):
            return source
        squares = _Squares(recipe, source.max_megapixels)
        images = enumerate(read_all(source.paths, squares.decode, "looking for broken files"))
        broken = {index: image for index, image in images if isinstance(image, Problem)}
        problems.extend(broken.values())
        if len(broken) == len(source):
            raise ValueError(f"data: none of the {len(source)} images of {source.name} can be read: {_some(problems)}")
        return source.subset([index for index in range(len(source)) if index not in broken])

    kept = split.map(keep_readable)
    if not problems:
        return kept
    count = f"{count_of(len(problems), 'broken file')} {is_or_are(len(problems))}"
    note = f"data: {count} left out, after all files were decoded once: {_some(problems)}"
    return replace(kept, notes=(*split.notes, note))


def _some(problems: Sequence[Problem]) -> str:
    """Name the first few broken files with their reasons."""
    named = "; ".join(f"{problem.path}: {problem.why}" for problem in problems[:3])
    return named + (f"; and {len(problems) - 3:,} more" if len(problems) > 3 else "")
