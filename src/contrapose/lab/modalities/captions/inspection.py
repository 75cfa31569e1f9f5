"""Inspect images with captions before training: splits, captions per image, lengths, duplicates and broken files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from contrapose.lab.modalities.captions.load import CaptionIndex, list_captions
from contrapose.lab.modalities.images.inspection import describe_image_files
from contrapose.lab.modalities.images.stream import Files
from contrapose.lab.modalities.modality import BrokenFiles, DataSettings
from contrapose.lab.modalities.source import Split
from contrapose.lab.modalities.text.inspection import describe_lengths, warn_of_long_texts


def describe_captions(settings: DataSettings) -> Iterator[str]:
    """Yield what training would use and what looks wrong; at the end, raise `BrokenFiles` if training would refuse the data."""
    refusal = ""
    try:
        listed = list_captions(settings)
    except ValueError as error:
        # Read again, to describe the rest of the data. The error remains if nothing can be used.
        listed, refusal = list_captions(replace(settings, skip_broken=True)), str(error)
    yield from listed.notes
    listing = listed.listing
    for name, rows in (("train: ", listed.train), ("test:  ", listed.test)):
        captions = sum(len(listing.captions[image]) for image in rows.tolist())
        yield name + (
            f"{len(rows):,} images with {captions:,} captions" if len(rows) else "none, so runs have no score"
        )
    per_image = Counter(map(len, listing.captions))
    least, most = min(per_image), max(per_image)
    yield f"captions per image: {least}" + (f" to {most}" if most > least else "")
    lengths = Counter(len(caption.split()) for captions in listing.captions for caption in captions)
    yield describe_lengths("captions", lengths)
    yield from warn_of_long_texts("captions", [lengths], "--text-length")
    yield from _shared(listed)
    files = Files(listing.name, listing.images, None, max_megapixels=settings.max_megapixels)
    test = files.subset(listed.test) if len(listed.test) else None
    broken: BrokenFiles | None = None
    try:
        yield from describe_image_files(Split(files.subset(listed.train), None, test), settings.data)
    except BrokenFiles as error:
        broken = error
    if refusal:
        yield f"training would stop with: {refusal}"
    if refusal or broken:
        raise broken or BrokenFiles(refusal)


def _shared(listed: CaptionIndex) -> Iterator[str]:
    """Yield a warning about captions that several images have."""
    images = Counter(caption for captions in listed.listing.captions for caption in set(captions))
    shared = [caption for caption, count in images.items() if count > 1]
    if shared:
        one = max(shared, key=lambda caption: images[caption])
        yield (
            "warning: captions of several images, which are then not negatives of each other: "
            f"{len(shared):,}, for example {one!r} of {images[one]:,} images"
        )
