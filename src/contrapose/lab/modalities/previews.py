"""What a page shows of samples: a picture, texts or both; and collections of samples to search."""

from __future__ import annotations

from dataclasses import dataclass

from contrapose.lab.modalities.source import Source


@dataclass(frozen=True)
class Preview:
    """A sample as a reader sees it."""

    image: bytes = b""  # a PNG or JPEG file
    texts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Collection:
    """All samples of a data set, to be searched. A model with two towers embeds them with the first."""

    source: Source
    texts: tuple[tuple[str, ...], ...] = ()  # further texts of each sample, such as captions; empty if there are none
    notes: tuple[str, ...] = ()
