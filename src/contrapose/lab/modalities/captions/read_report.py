"""`ReadReport`: which images and captions were read, which were left out, and when too many are left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from contrapose.lab.modalities.images.decoding import ImagePath
from contrapose.lab.modalities.shards import SPLITS
from contrapose.lab.modalities.tars import printable
from contrapose.lab.modalities.text.lines import BadLine

LARGEST_SHARE = 0.5  # share of captions or images that may be left out; more is probably a mistake
_LONG = 1000  # characters; a longer caption has far more tokens than any encoder here reads
_NAMED = 3  # largest number of names in a note


@dataclass
class ReadReport:
    """Captions by image, in the order of the data, and the names of everything that is left out."""

    source: str  # name of the data, for messages
    advice: str  # what to check if most captions have no image, or most images no caption
    captions: dict[ImagePath, list[str]] = field(default_factory=dict)
    splits: dict[ImagePath, str] = field(default_factory=dict)
    count: int = 0  # number of all captions, including captions without an image
    without_image: list[str] = field(default_factory=list)  # the missing image of each such caption
    without_caption: list[str] = field(default_factory=list)  # images
    empty: list[str] = field(default_factory=list)  # lines or members whose caption is empty
    broken: list[str] = field(default_factory=list)  # lines or members that cannot be used
    long: list[str] = field(default_factory=list)  # lines or members whose caption is long
    notes: list[str] = field(default_factory=list)

    def add(self, image: ImagePath | None, name: str, texts: Sequence[str], where: str) -> None:
        """Add captions to an image; None if the image of this name does not exist."""
        captions = [text.strip() for text in texts if text.strip()]
        self.empty += [where] * max(len(texts) - len(captions), not texts)
        self.long += [where for caption in captions if len(caption) > _LONG]
        self.count += len(captions)
        if image is None:
            self.without_image += [printable(name)] * len(captions)
        elif captions:
            self.captions.setdefault(image, []).extend(captions)

    def assign(self, image: ImagePath, name: str) -> BadLine | None:
        """Put an image into the split with this name; if that is impossible, return the reason."""
        split = SPLITS.get(name.strip().lower(), "")
        if not split:
            return BadLine(f"has the split {name!r}, expected train, val or test")
        if self.splits.setdefault(image, split) != split:
            return BadLine(f"has {image.name} in {split}, but it is in {self.splits[image]} already")
        return None

    def check_shares(self) -> None:
        """Refuse data in which most captions have no image, or most images no caption: something else must be wrong."""
        images = len(self.captions) + len(self.without_caption)
        split_advice = "expected train, val or test for each: check the names of the images in the file of splits"
        for names, total, what, lack, advice in (
            (self.without_image, self.count, "captions", "image", self.advice),
            (self.without_caption, images, "images", "caption", self.advice),
            (self._without_split(), len(self.captions), "images", "split", split_advice),
        ):
            if len(names) > LARGEST_SHARE * total:
                raise ValueError(
                    f"data: {len(names):,} of {total:,} {what} of {self.source} have no {lack}, for example {names[0]}; "
                    f"{advice}, or use the rest with --skip-broken"
                )

    def leave_out_without_split(self) -> None:
        """Leave out images without a split if other images have a split: the images without one may be test images."""
        self._note("images in no split (train, val or test) are left out", self._without_split())
        if self.splits:
            self.captions = {image: texts for image, texts in self.captions.items() if image in self.splits}

    def _without_split(self) -> list[str]:
        return [printable(image.name) for image in self.captions if image not in self.splits] if self.splits else []

    def check_not_empty(self) -> None:
        """Refuse data in which no image has a caption."""
        if not self.captions:
            counts = (
                f"{len(self.without_image):,} captions without image, {len(self.without_caption):,} images without caption, "
                f"{len(self.empty):,} empty captions"
            )
            raise ValueError(f"data: {self.source} has no image with a caption ({counts}); {self.advice}")

    def make_notes(self) -> None:
        """Add a sentence about everything that was left out, or that may surprise a user."""
        repeated = [printable(image.name) for image, texts in self.captions.items() if len(set(texts)) < len(texts)]
        images = len(self.captions) + len(self.without_caption)
        self._note("captions without an image are left out", self.without_image, self.count)
        self._note("images without a caption are left out", self.without_caption, images)
        self._note("empty captions are left out", self.empty)
        self._note("rows or members that cannot be used are left out (--skip-broken)", self.broken)
        self._note(f"captions of more than {_LONG:,} characters are cut to their first tokens", self.long)
        self._note("images with the same caption twice keep both", repeated)

    def _note(self, sentence: str, names: Sequence[str], total: int = 0) -> None:
        if names:
            of = f" of {total:,}" if total else ""
            self.notes.append(f"data: {sentence}: {len(names):,}{of} ({first_names(names)})")


def first_names(names: Sequence[str]) -> str:
    """Return the first few names, and the number of other names."""
    different = list(dict.fromkeys(names))
    more = f" and {len(different) - _NAMED:,} more" if len(different) > _NAMED else ""
    return ", ".join(different[:_NAMED]) + more
