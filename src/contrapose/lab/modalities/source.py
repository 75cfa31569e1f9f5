"""What data sets and their views are: the types with which frameworks, training and evaluation work.

    Source     a data set: length, labels, subsets
    Reader     a source on a device, with the views that are made of it
    ViewMaker  random views for training, plain inputs for evaluation
    Split      the data sets of a run

A batch of inputs is a tensor whose first dimension counts samples; views of a batch are a list of tensors (V, B, …), one for each
shape of input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from contrapose.lab.modalities.tars import StoredFile

AUGMENTATIONS = ("crops", "flips", "colours")  # of supervised training, see `ViewMaker.light`


class ViewMaker(Protocol):
    """How inputs of a network are made from raw samples."""

    @property
    def count(self) -> int:
        """Number of views of a sample."""

    def train(self, raw: Tensor, index: Tensor, *, seed: int | Tensor, epoch: int | Tensor) -> list[Tensor]:
        """Random views of raw samples, decided by (seed, epoch, index, view): tensors (V, B, …), one per shape of input."""

    def draw(self, raw: Tensor, index: Tensor, *, seed: int | Tensor, epoch: int | Tensor) -> Tensor:
        """One random view (B, …), as the first of `train`: for metrics under augmentation."""

    def plain(self, raw: Tensor) -> Tensor:
        """Inputs for evaluation (B, …), without augmentation."""

    def light(self, augment: str = "crops", *, smallest: float | None = 0.2) -> ViewMaker:
        """One view with a mild augmentation of `AUGMENTATIONS`, for fine-tuning and linear probes.

        augment    for images: "crops" crops and flips; "flips" and "colours" leave the image whole
        smallest   smallest share of an image that is cropped; None: as in training
        """

    def evaluation_batch(self, device: torch.device) -> int:
        """Number of samples in a batch of evaluation on this device."""


class Reader(Protocol):
    """A source on a device."""

    @property
    def resident(self) -> Tensor | None:
        """All raw samples on the device; None if they are streamed from disk."""

    def train(self, batches: Sequence[list[int]], *, seed: int, epoch: int) -> Iterator[list[Tensor]]:
        """Views of each batch of indices."""

    def plain(self) -> Iterator[Tensor]:
        """Evaluation inputs of all samples, in order and in batches."""


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
        """The file of each sample, or its member of a tar, if each has one; else empty."""

    @property
    def ids(self) -> Tensor | None:
        """(N,) numbers below N, equal for samples that are never negatives of each other (equal texts); None: all differ."""

    @property
    def fingerprint(self) -> str:
        """Changes when the samples change."""

    def __len__(self) -> int: ...

    def counts(self) -> list[int]:
        """Number of samples of each class."""

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
    ids: Tensor  # (n,) equal documents have equal ids: any of them is right


@dataclass(frozen=True)
class Split:
    """The data to train on and to evaluate on: features of `probe` classify those of `test`, if there are labels."""

    train: Source
    probe: Source | None
    test: Source | None
    notes: tuple[str, ...] = ()  # what may surprise a user about the data, one sentence each
    retrieval: Retrieval | None = None  # pairs to evaluate on

    def map(self, change: Callable[[Source], Source]) -> Split:
        """Change each data set; if `probe` and `train` are the same object, they stay so."""
        sources = {id(source): source for source in (self.train, self.probe, self.test) if source is not None}
        changed = {key: change(source) for key, source in sources.items()}
        # A source that is used twice is changed once: reading it twice would take twice the time and memory.
        probe, test = changed.get(id(self.probe)), changed.get(id(self.test))
        return replace(self, train=changed[id(self.train)], probe=probe, test=test)

    @property
    def held_out(self) -> Source:
        """The test samples, or the training samples if there are no others."""
        return self.test if self.test is not None else self.train
