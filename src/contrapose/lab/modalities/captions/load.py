"""Load images with captions: training and test samples, with the captions as tokens."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from contrapose.lab.modalities.captions.captions import Captions
from contrapose.lab.modalities.captions.files import CaptionList, open_captions
from contrapose.lab.modalities.captions.views import CaptionViews
from contrapose.lab.modalities.images.stream import Files, without_broken
from contrapose.lab.modalities.modality import DataSettings
from contrapose.lab.modalities.source import Split
from contrapose.lab.modalities.text.load import sample_rows
from contrapose.lab.modalities.text.sentences import Sentences
from contrapose.lab.modalities.text.tokens import tokenise

_MOST_HELD_OUT = 1000  # images, as in the usual protocol for Flickr30k and COCO
_OF_CLASSES = ("classes", "imbalance", "eval_data")


@dataclass(frozen=True)
class LineTable:
    """Texts in memory, as rows of one column."""

    path: Path
    texts: Sequence[str]
    columns: tuple[str, ...] = ("caption",)

    @cached_property
    def fingerprint(self) -> str:
        """A checksum of the texts."""
        return f"{zlib.crc32(repr(self.texts).encode()):08x}"

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yield the texts."""
        return ((text,) for text in self.texts)

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class CaptionIndex:
    """A data set's images and captions before decoding, and the indices of the images to train on and to test on."""

    listing: CaptionList
    train: torch.Tensor
    test: torch.Tensor
    notes: tuple[str, ...]

    def training_texts(self) -> LineTable:
        """Return the captions of the training images."""
        texts = tuple(text for image in self.train.tolist() for text in self.listing.captions[image])
        return LineTable(Path(self.listing.name), texts)


def list_captions(settings: DataSettings) -> CaptionIndex:
    """List a run's images and captions, and split them as the data specifies; otherwise, hold out some images."""
    for name in _OF_CLASSES:
        if getattr(settings, name):
            raise ValueError(
                f"{name}: this setting is only for images with classes, and {settings.data} has captions; omit it"
            )
    listing = open_captions(Path(settings.data), columns=settings.columns, skip_broken=settings.skip_broken)
    train, test, notes = _divide(listing, settings.hold_out)
    if settings.limit:
        if settings.limit > len(train):
            raise ValueError(
                f"limit: expected at most the {len(train)} training images of {settings.data}, got {settings.limit}"
            )
        train = train[sample_rows(len(train), settings.limit)]
    return CaptionIndex(listing, train, test, (*listing.notes, *notes))


def _divide(listing: CaptionList, hold_out: float) -> tuple[torch.Tensor, torch.Tensor, tuple[str, ...]]:
    """Return the indices of training and test images, and notes. A validation split replaces a missing test split."""
    everything = torch.arange(len(listing.images))
    if listing.splits:
        members = {
            split: torch.tensor([n for n, own in enumerate(listing.splits) if own == split], dtype=torch.long)
            for split in ("train", "val", "test")
        }
        if not len(members["train"]):
            raise ValueError(f"data: {listing.name} says which images are val or test, and none that are train")
        test = members["test"] if len(members["test"]) else members["val"]
        return members["train"], test, ()
    count = min(_MOST_HELD_OUT, round(hold_out * len(everything)))
    if not count:
        return everything, everything[:0], ()
    test = sample_rows(len(everything), count)
    kept = torch.ones(len(everything), dtype=torch.bool)
    kept[test] = False
    note = f"{count:,} of {len(everything):,} images are held out, to measure retrieval (--hold-out)"
    return everything[kept], test, (note,)


def with_held_out(listing: CaptionList, hold_out: float) -> CaptionList:
    """Return a listing whose splits say which images a run holds out; unchanged if the data itself has splits."""
    if listing.splits:
        return listing
    _, test, _ = _divide(listing, hold_out)
    splits = ["train"] * len(listing.images)
    for image in test.tolist():
        splits[image] = "test"
    return replace(listing, splits=tuple(splits)) if len(test) else listing


def load(
    settings: DataSettings, listed: CaptionIndex, tokenizer: Any, views: CaptionViews, *, cached: bool = False
) -> Split:
    """Load a run's images, in memory unless they are streamed, and the tokens of their captions."""
    images = Files(listed.listing.name, listed.listing.images, None, max_megapixels=settings.max_megapixels)
    notes = list(listed.notes)
    lines = LineTable(Path(listed.listing.name), tuple(text for texts in listed.listing.captions for text in texts))
    tokens = tokenise(lines, tokenizer, length=views.texts.length, cached=cached, log=notes.append)
    everything = _captions(images, listed.listing, Sentences(listed.listing.name, tokens, tokenizer))
    train = everything.subset(listed.train)
    test = everything.subset(listed.test) if len(listed.test) else None
    split = Split(train, None, test, notes=tuple(notes))
    if settings.skip_broken:
        split = _without_broken(split, views)
    return split if settings.stream else split.map(lambda source: source.in_memory(views))


def _captions(images: Files, listing: CaptionList, texts: Sentences) -> Captions:
    number = torch.tensor([len(captions) for captions in listing.captions])
    return Captions(
        images=images,
        texts=texts,
        first=number.cumsum(0) - number,
        number=number,
        written=listing.captions,
    )


def _without_broken(split: Split, views: CaptionViews) -> Split:
    """Leave out images that cannot be read, with their captions."""
    notes = list(split.notes)

    def readable(source: Any) -> Any:
        assert isinstance(source, Captions)
        images = source.images
        # Labels carry each image's number through the selection.
        numbered = replace(images, labels=torch.arange(len(images)))
        checked = without_broken(Split(numbered, None, None), views.images.recipes[0])
        notes.extend(checked.notes)
        assert checked.train.labels is not None
        return source.subset(checked.train.labels)

    return replace(split.map(readable), notes=tuple(notes))
