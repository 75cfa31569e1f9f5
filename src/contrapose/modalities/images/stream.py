"""Images too many or too large for memory: workers decode and crop, the rest of a view is made on the whole batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from contrapose.modalities.images.folder import decode, files
from contrapose.modalities.images.images import Images, channels_first, class_counts, fingerprint
from contrapose.modalities.images.views import Recipe, Views
from contrapose.modalities.modality import ViewMaker
from contrapose.workers import TIMEOUT, LoadingFailed, process_context, start_loading

_POLL = 2.0  # seconds between two looks at whether a worker has died

Place = tuple[int, Path]  # an image's index in its data set, and its file


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

    def read(self, index: int) -> Tensor:
        """Decode one image as uint8 (1, 3, H, W)."""
        return _read((index, self.paths[index]))

    def places(self, indices: Sequence[int]) -> list[Place]:
        """Return what a worker needs of these images. It travels with each batch: starting a worker copies no list of files."""
        return [(index, self.paths[index]) for index in indices]

    def in_memory(self, views: ViewMaker) -> Images:
        """Decode all of them, resized and cut out of the centre as in evaluation."""
        assert isinstance(views, Views)
        pixels = torch.cat(list(whole(self, views.recipes[0], batch=500, workers=0)))
        return Images(self.name, pixels, self.labels, self.classes)

    def reader(self, views: ViewMaker, device: torch.device, *, workers: int, timeout: float) -> StreamedImages:
        """Leave the files on disk: workers decode and crop them."""
        assert isinstance(views, Views)
        return StreamedImages(self, views, device, workers, timeout)


@dataclass(frozen=True, eq=False)
class StreamedImages:
    """Files that workers decode and crop; the rest of a view is made on the device, on the whole batch."""

    source: Files
    views: Views
    device: torch.device
    workers: int
    timeout: float
    resident = None

    def train(self, batches: Sequence[list[int]], *, seed: int, epoch: int) -> Iterator[list[Tensor]]:
        """Yield the views of each batch of indices."""
        cropped = crops(
            self.source,
            self.views,
            batches,
            seed=seed,
            epoch=epoch,
            workers=self.workers,
            timeout=self.timeout,
        )
        for batch, parts in zip(batches, cropped, strict=True):
            index = torch.as_tensor(batch, device=self.device)
            yield self.views.finish([part.to(self.device) for part in parts], index, seed=seed, epoch=epoch)

    def plain(self) -> Iterator[Tensor]:
        """Yield evaluation inputs of all images."""
        recipe, size = self.views.recipes[0], self.views.evaluation_batch(self.device)
        for pixels in whole(self.source, recipe, batch=size, workers=self.workers, timeout=self.timeout):
            yield recipe.plain(pixels.to(self.device))


class UnreadableImage(ValueError):
    """An image file that is broken, with its path and index."""


def _read(place: Place, size: int | None = None, shorter: int | None = None) -> Tensor:
    """Decode one file as uint8 (1, 3, H, W); one that cannot be read is named."""
    index, path = place
    try:
        return channels_first(decode(path, size, shorter)[None])
    except Exception as error:
        raise UnreadableImage(f"data: image {index}, {path}, cannot be read: {error}") from error


@dataclass(frozen=True)
class _Crops(Dataset[list[Tensor]]):
    """Each view's crop of one image, decided by (seed, epoch, index, view): the same from any worker."""

    views: Views
    seed: int
    epoch: int

    def __getitem__(self, place: Place) -> list[Tensor]:
        image, index = _read(place), torch.tensor([place[0]])
        return [crop[0] for crop in self.views.crop(image, index, seed=self.seed, epoch=self.epoch)]


@dataclass(frozen=True)
class _Whole(Dataset[Tensor]):
    """Each image as a recipe has it in evaluation."""

    recipe: Recipe

    def __getitem__(self, place: Place) -> Tensor:
        return _read(place, self.recipe.size, self.recipe.resized)[0]


def crops(
    source: Files,
    views: Views,
    batches: Sequence[list[int]],
    *,
    seed: int,
    epoch: int,
    workers: int,
    timeout: float = TIMEOUT,
) -> Iterator[list[Tensor]]:
    """For each batch of indices, yield each view's crops as one tensor (B, 3, size, size)."""
    yield from _load(_Crops(views, seed, epoch), source, batches, workers, timeout)


def whole(source: Files, recipe: Recipe, *, batch: int, workers: int, timeout: float = TIMEOUT) -> Iterator[Tensor]:
    """Yield all images in order, resized and cut out of the centre, uint8 (B, 3, size, size)."""
    batches = [list(range(first, min(first + batch, len(source)))) for first in range(0, len(source), batch)]
    yield from _load(_Whole(recipe), source, batches, workers, timeout)


Batch = TypeVar("Batch")


def _load(
    dataset: Dataset[Batch], source: Files, batches: Sequence[list[int]], workers: int, timeout: float
) -> Iterator[Batch]:
    """Yield the batches, decoded here or by worker processes; fail if no batch arrives for `timeout` seconds."""
    processes: dict[str, Any] = (
        {"multiprocessing_context": process_context(), "worker_init_fn": start_loading, "timeout": _POLL}
        if workers
        else {}
    )
    loader = DataLoader(dataset, batch_sampler=_Places(source, batches), num_workers=workers, **processes)
    iterator, waited = iter(loader), 0.0
    try:
        while True:
            try:
                batch = next(iterator)
            except StopIteration:
                return
            except RuntimeError as error:
                # DataLoader looks for dead workers only when its timeout runs out, so ours is made of many short ones.
                if "DataLoader timed out" not in str(error):
                    raise
                waited += _POLL
                if waited >= timeout:
                    raise _silent(iterator, workers, timeout) from None
                continue
            waited = 0.0
            yield batch
    except UnreadableImage as error:
        # From a worker the message carries its traceback; the line that matters is the one about the image.
        lines = [line for line in str(error).splitlines() if "cannot be read" in line]
        raise ValueError(lines[-1].split("UnreadableImage: ")[-1] if lines else str(error)) from None
    finally:
        del (
            iterator
        )  # ends the workers now; a traceback would keep this frame, and them, for as long as somebody holds it


def _silent(iterator: Any, workers: int, timeout: float) -> LoadingFailed:
    """End workers that do not answer, and say so. They may not answer SIGTERM either, and would be waited for at exit."""
    for worker in iterator._workers:
        worker.kill()
    return LoadingFailed(
        f"no batch came from the {workers} data-loading workers for {timeout:g} s; run the same command again to resume from the "
        "last checkpoint, with --workers 0 to load in the training process, or with a longer --worker-timeout"
    )


class _Places:
    """The batches as workers need them, made one by one: an epoch of ImageNet is never listed as a whole."""

    def __init__(self, source: Files, batches: Sequence[list[int]]) -> None:
        self.source, self.batches = source, batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[Place]]:
        return map(self.source.places, self.batches)
