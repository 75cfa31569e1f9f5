"""Types for data sets and their views, which frameworks, training and evaluation use.

    Source     a data set: length, labels, subsets
    Reader     a source on a device, which yields views of its samples
    ViewMaker  random views for training, inputs without augmentation for evaluation
    Split      the data sets of a run

A batch of inputs is a tensor whose first dimension counts samples; views of a batch are a list of tensors (V, B, …), one
per input shape.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from contrapose.lab.modalities.stored_files import StoredFile

# Augmentations for supervised training, see `ViewMaker.light`
AUGMENTATIONS = ("crops", "flips", "colours", "jittered")


class ViewMaker(Protocol):
    """How a network's inputs are made from raw samples."""

    @property
    def count(self) -> int:
        """Number of views per sample."""

    def train(self, raw: Tensor, index: Tensor, *, seed: int | Tensor, epoch: int | Tensor) -> list[Tensor]:
        """Random views of raw samples, a function of (seed, epoch, index, view): tensors (V, B, …), one per input shape."""

    def draw(self, raw: Tensor, index: Tensor, *, seed: int | Tensor, epoch: int | Tensor) -> Tensor:
        """One random view (B, …), made like the first view in `train`, for metrics under augmentation."""

    def plain(self, raw: Tensor) -> Tensor:
        """Inputs for evaluation (B, …), without augmentation."""

    def light(self, augment: str = "crops", *, smallest: float | None = 0.2) -> ViewMaker:
        """One view with a mild augmentation from `AUGMENTATIONS`, for fine-tuning and linear probes.

        augment    for images: "crops" crops and flips, "jittered" also changes colours; "flips" and "colours" leave the image
                   whole
        smallest   smallest share of an image's area in a crop; None: as in training
        """

    def evaluation_batch(self, device: torch.device) -> int:
        """Batch size for evaluation on this device."""


@runtime_checkable
class KernelViewMaker(Protocol):
    """A view maker that may have kernels of its own."""

    def uses_kernels(self, device: torch.device) -> bool:
        """Whether kernels make the views on this device; compiling `train` would then gain nothing."""


class Reader(Protocol):
    """A source on a device."""

    @property
    def resident(self) -> Tensor | None:
        """All raw samples on the device; None if they are streamed from disk."""

    def train(self, batches: Sequence[list[int]], *, seed: int, epoch: int) -> Iterator[list[Tensor]]:
        """Views of each batch of indices."""

    def plain(self) -> Iterator[Tensor]:
        """Evaluation inputs of all samples, in order and in batches."""


@runtime_checkable
class StagedReader(Protocol):
    """A reader of samples on disk that makes views in two stages; the second can be part of a CUDA graph."""

    def stage(self, batches: Sequence[list[int]], *, seed: int, epoch: int) -> Generator[list[Tensor], None, None]:
        """What `finish` needs of each batch of indices, on the device: tensors of the same shapes for every batch."""

    def finish(self, staged: list[Tensor], index: Tensor, *, seed: int | Tensor, epoch: int | Tensor) -> list[Tensor]:
        """Views of a batch."""


@runtime_checkable
class ProcessReader(Protocol):
    """A reader whose worker processes serve all epochs."""

    def close(self) -> None:
        """End the processes; the next epoch starts new ones."""


def finish_each(
    reader: StagedReader, batches: Sequence[list[int]], device: torch.device, *, seed: int, epoch: int
) -> Iterator[list[Tensor]]:
    """Yield the views of each batch of indices from both stages of a reader."""
    for batch, staged in zip(batches, reader.stage(batches, seed=seed, epoch=epoch), strict=True):
        yield reader.finish(staged, torch.as_tensor(batch, device=device), seed=seed, epoch=epoch)


@runtime_checkable
class BlockReader(Protocol):
    """A reader of samples of which many share a file that is read fastest from its beginning, such as a tar."""

    @property
    def blocks(self) -> Tensor | None:
        """The number of each sample's file (N,); None if each sample has its own."""


class Source(Protocol):
    """A data set: samples, with labels if there are any."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def labels(self) -> Tensor | None:
        """(N,) int64."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, if they are known."""

    @property
    def paths(self) -> Sequence[Path | StoredFile]:
        """The file or tar member of each sample, if every sample has one; else empty."""

    @property
    def ids(self) -> Tensor | None:
        """(N,) numbers below N, equal for samples that are never negatives of each other (equal texts); None: all differ."""

    @property
    def fingerprint(self) -> str:
        """A checksum that changes when the samples change."""

    def __len__(self) -> int: ...

    def counts(self) -> list[int]:
        """Number of samples in each class."""

    def subset(self, index: Tensor | Sequence[int]) -> Source:
        """The samples at these indices, in this order."""

    def in_memory(self, views: ViewMaker) -> Source:
        """The same samples in memory, prepared for these views."""

    def reader(self, views: ViewMaker, device: torch.device, *, workers: int, timeout: float) -> Reader:
        """The source on a device."""


@dataclass(frozen=True)
class Retrieval:
    """Held-out pairs: document i belongs to query i."""

    queries: Source
    documents: Source
    ids: Tensor  # (n,) equal documents have equal ids, and any of them counts as correct
    query_ids: Tensor | None = None  # (n,) the same for equal queries, if there are any


@dataclass(frozen=True)
class Split:
    """The data to train on and to evaluate on. If there are labels, a classifier on `probe` features is scored on `test`."""

    train: Source
    probe: Source | None
    test: Source | None
    notes: tuple[str, ...] = ()  # what may surprise a user about the data, one sentence each
    retrieval: Retrieval | None = None  # pairs to evaluate on

    def map(self, change: Callable[[Source], Source]) -> Split:
        """Apply a change to each data set; if `probe` and `train` are the same object, they remain the same object."""
        sources = {id(source): source for source in (self.train, self.probe, self.test) if source is not None}
        changed = {key: change(source) for key, source in sources.items()}
        # A source that is used twice is changed only once: reading it twice would take twice the time and memory.
        probe, test = changed.get(id(self.probe)), changed.get(id(self.test))
        return replace(self, train=changed[id(self.train)], probe=probe, test=test)

    @property
    def held_out(self) -> Source:
        """The test samples, or the training samples if there are no test samples."""
        return self.test if self.test is not None else self.train
