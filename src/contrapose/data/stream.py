"""Images too many or too large for memory: workers decode and crop, the rest of a view is made on the whole batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from contrapose.data.folder import decode, files
from contrapose.data.images import channels_first, class_counts, fingerprint
from contrapose.data.views import Recipe, Views


@dataclass(frozen=True, eq=False)
class Files:
    """Image files on disk, with the labels of their folders if there are any; decoded when they are needed."""

    name: str
    paths: tuple[Path, ...]
    labels: Tensor | None
    classes: tuple[str, ...] = ()

    @classmethod
    def of(cls, folder: Path, only: Sequence[str] = ()) -> Files:
        """All images of a folder, or those of some classes."""
        paths, labels, classes = files(folder, only)
        return cls(folder.name, tuple(paths), None if labels is None else torch.tensor(labels), classes)

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def fingerprint(self) -> str:
        """Which files these are."""
        return fingerprint(self.paths)

    def subset(self, index: Sequence[int] | Tensor) -> Files:
        """The files at these places, in this order."""
        places = torch.as_tensor(index, dtype=torch.long)
        labels = None if self.labels is None else self.labels[places]
        return replace(self, paths=tuple(self.paths[i] for i in places.tolist()), labels=labels)

    def counts(self) -> list[int]:
        """How many images each class has."""
        return class_counts(self.name, self.labels, self.classes)

    def read(self, place: int, size: int | None = None, shorter: int | None = None) -> Tensor:
        """uint8 (1, 3, H, W); a file that cannot be read is named."""
        try:
            return channels_first(decode(self.paths[place], size, shorter)[None])
        except Exception as error:
            raise UnreadableImage(f"data: image {place}, {self.paths[place]}, cannot be read: {error}") from error


class UnreadableImage(ValueError):
    """An image file that is broken, with its path and index."""


class _Crops(Dataset[list[Tensor]]):
    """Each view's crop of one image, decided by (seed, epoch, index, view): the same from any worker."""

    def __init__(self, source: Files, views: Views, seed: int, epoch: int) -> None:
        self.source, self.views, self.seed, self.epoch = source, views, seed, epoch

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, place: int) -> list[Tensor]:
        image, index = self.source.read(place), torch.tensor([place])
        return [crop[0] for crop in self.views.crop(image, index, seed=self.seed, epoch=self.epoch)]


class _Whole(Dataset[Tensor]):
    """Each image as a recipe has it in evaluation."""

    def __init__(self, source: Files, recipe: Recipe) -> None:
        self.source, self.recipe = source, recipe

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, place: int) -> Tensor:
        return self.source.read(place, self.recipe.size, self.recipe.resized)[0]


def crops(
    source: Files, views: Views, batches: Sequence[list[int]], *, seed: int, epoch: int, workers: int
) -> Iterator[list[Tensor]]:
    """For each batch of places, each view's crops as one tensor (B, 3, size, size)."""
    loader = DataLoader(_Crops(source, views, seed, epoch), batch_sampler=batches, num_workers=workers)
    yield from _guarded(loader)


def whole(source: Files, recipe: Recipe, *, batch: int, workers: int) -> Iterator[Tensor]:
    """All images in order, resized and cut out of the centre, uint8 (B, 3, size, size)."""
    yield from _guarded(DataLoader(_Whole(source, recipe), batch_size=batch, num_workers=workers))


Batch = TypeVar("Batch")


def _guarded(loader: Iterable[Batch]) -> Iterator[Batch]:
    try:
        yield from loader
    except UnreadableImage as error:
        # From a worker the message carries its traceback; the line that matters is the one about the image.
        lines = [line for line in str(error).splitlines() if "cannot be read" in line]
        raise ValueError(lines[-1].split("UnreadableImage: ")[-1] if lines else str(error)) from None


@contextmanager
def worker_deaths() -> Iterator[None]:
    """Inside, a dead worker is a `WorkerDied`: torch raises its error wherever the program happens to be."""
    try:
        yield
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        why = str(error).splitlines()[0]
        raise WorkerDied(f"a loader worker died ({why}); the same command goes on from the last checkpoint") from error


class WorkerDied(Exception):
    """A process that decodes images was killed, often for want of memory."""
