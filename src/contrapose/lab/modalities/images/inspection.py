"""Inspect the files in a data set: sizes, kinds of images, duplicates and likely mistakes."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from contrapose.lab.counts import count_of, is_or_are
from contrapose.lab.modalities.images.decoding import ImagePath, Problem, as_rgb, open_image, read_all
from contrapose.lab.modalities.images.stream import Files
from contrapose.lab.modalities.modality import BrokenFiles, DataSettings
from contrapose.lab.modalities.source import Source, Split

if TYPE_CHECKING:
    from PIL.Image import Image

_SMALL = 1 / 4  # share of the median shorter side, below which an image is an outlier
_ELONGATED = 4  # aspect ratio from which an image is an outlier
_FEW = 5  # a class with fewer images is too small
_FEW_SHARE = 1 / 10  # share of the median class size, below which a class is too small


@dataclass(frozen=True)
class ImageFile:
    """What a readable file contains."""

    path: ImagePath
    format: str
    kind: str  # RGB, gray, palette, alpha, CMYK, 16-bit
    width: int
    height: int
    rotated: bool  # whether its EXIF data rotates it
    animated: bool  # whether it has several frames or pages
    digest: str  # hash of the file's bytes

    @property
    def shorter(self) -> int:
        """The shorter side, in pixels."""
        return min(self.width, self.height)


@dataclass(frozen=True)
class Inspection:
    """The readable and the broken files in a data set, and warnings."""

    files: tuple[ImageFile, ...]
    problems: tuple[Problem, ...]
    warnings: tuple[str, ...]


def describe_files(split: Split, data: str) -> Iterator[str]:
    """Yield which data training would use and, if it is files, what they contain; raise `BrokenFiles` if some are broken."""
    yield from split.notes
    yield f"train: {_contents(split.train)}"
    yield f"test:  {_contents(split.test) if split.test is not None else 'no labelled images, so runs will have no score'}"
    if isinstance(split.train, Files):
        yield from describe_image_files(split, data)


def describe_image_files(split: Split, data: str) -> Iterator[str]:
    """Yield what the files of a data set contain and what looks wrong; raise `BrokenFiles` if some are broken."""
    inspection = inspect(split)
    yield from summary(inspection.files)
    yield from (f"warning: {warning}" for warning in inspection.warnings)
    yield from (f"{problem.path}: {problem.why}" for problem in inspection.problems)
    readable, broken = len(inspection.files), len(inspection.problems)
    yield f"{readable:,} of {readable + broken:,} images can be read"
    if broken:
        yield "train, evaluate and embed leave the broken files out with --skip-broken"
        raise BrokenFiles(f"{count_of(broken, 'file')} of {data} cannot be read")


def _contents(images: Source) -> str:
    """Describe a split: its number of images, and its classes with their counts."""
    if images.labels is None:
        return f"{count_of(len(images), 'image')}, no classes"
    counts = images.counts()
    size = f"{count_of(len(images), 'image')}, {count_of(len(counts), 'class')}"
    if not images.classes or len(counts) > 12:
        return f"{size} of {min(counts):,} to {max(counts):,}"
    listing = ", ".join(f"{name} {count:,}" for name, count in zip(images.classes, counts, strict=True))
    return f"{size}: {listing}"


def inspect(split: Split) -> Inspection:
    """Decode all files of training and test images."""
    parts = [source for source in (split.train, split.test) if isinstance(source, Files)]
    paths = [path for part in parts for path in part.paths]
    limit = min((part.max_megapixels for part in parts), default=DataSettings.max_megapixels)
    results = list(read_all(paths, partial(_examine, max_megapixels=limit), "reading images"))
    files = tuple(result for result in results if isinstance(result, ImageFile))
    problems = tuple(result for result in results if isinstance(result, Problem))
    label_of = dict(zip(split.train.paths, _class_names(split.train), strict=True))
    warnings = (*_outliers(files), *_small_classes(split.train), *_duplicates(files, label_of))
    return Inspection(files, problems, warnings)


def _examine(path: ImagePath, *, max_megapixels: float) -> ImageFile:
    """Decode a file and return what it contains."""
    with open_image(path, max_megapixels=max_megapixels) as file:
        # Read before decoding, which may convert the image.
        kind, animated = _kind(file), getattr(file, "is_animated", False)
        rotated = file.getexif().get(0x0112, 1) != 1
        image = as_rgb(file)
        name = file.format or ""
    content = path.read_bytes() if isinstance(path, Path) else path.read()
    digest = hashlib.sha256(content).hexdigest()
    return ImageFile(path, name, kind, image.width, image.height, rotated, animated, digest)


def _kind(image: Image) -> str:
    """Return a word for how an opened image stores its pixels."""
    if image.has_transparency_data:
        return "alpha"
    if image.mode.startswith("I") or image.mode == "F":
        return "16-bit" if image.mode.startswith("I;16") else "32-bit"
    return {"1": "gray", "L": "gray", "P": "palette"}.get(image.mode, image.mode)


def _class_names(source: Source) -> Sequence[str]:
    if source.labels is None:
        return [""] * len(source)
    return [source.classes[label] for label in source.labels.tolist()]


def _outliers(files: Sequence[ImageFile]) -> Iterator[str]:
    """Yield warnings about images that are much smaller or more elongated than usual."""
    if not files:
        return
    usual = median(file.shorter for file in files)
    small = [file for file in files if file.shorter < usual * _SMALL]
    if small:
        one = min(small, key=lambda file: file.shorter)
        yield (
            f"{count_of(len(small), 'image')} {is_or_are(len(small))} smaller than a quarter of the median of {usual:g} pixels, "
            f"for example {one.path} with {one.width} × {one.height}"
        )
    elongated = [file for file in files if max(file.width, file.height) >= _ELONGATED * file.shorter]
    if elongated:
        one = max(elongated, key=lambda file: max(file.width, file.height) / file.shorter)
        yield (
            f"{count_of(len(elongated), 'image')} with an aspect ratio of {_ELONGATED}:1 or more; evaluation sees only the "
            f"centre, for example {one.path} with {one.width} × {one.height}"
        )


def _small_classes(train: Source) -> Iterator[str]:
    """Yield a warning about classes with very few training images."""
    if train.labels is None:
        return
    counts = dict(zip(train.classes, train.counts(), strict=True))
    least = max(_FEW, median(counts.values()) * _FEW_SHARE)
    few = [name for name, count in counts.items() if count < least]
    if few:
        smallest = min(few, key=lambda name: counts[name])
        yield f"{count_of(len(few), 'class')} with very few training images, for example {smallest} with {counts[smallest]:,}"


def _duplicates(files: Sequence[ImageFile], label_of: dict[ImagePath, str]) -> Iterator[str]:
    """Yield warnings about files with the same content; `label_of` gives the class of each training image."""
    copies: dict[str, list[ImagePath]] = defaultdict(list)
    for file in files:
        copies[file.digest].append(file.path)
    repeated = [paths for paths in copies.values() if len(paths) > 1]
    within = [paths for paths in repeated if sum(path in label_of for path in paths) > 1]
    leaks = [paths for paths in repeated if 0 < sum(path in label_of for path in paths) < len(paths)]
    contradictions = [paths for paths in within if len({label_of[path] for path in paths if path in label_of}) > 1]
    for groups, consequence in (
        (leaks, "in both training and test images, so scores will be too high"),
        (contradictions, "in several classes"),
        (within, "in the training images several times"),
    ):
        if groups:
            count = count_of(len(groups), "group")
            yield f"{count} of files with the same content {consequence}, for example {groups[0][0]} and {groups[0][1]}"


def summary(files: Sequence[ImageFile]) -> list[str]:
    """Return lines about sizes, kinds of images and formats; empty if there are no files."""
    if not files:
        return []
    sides = sorted(file.shorter for file in files)
    sizes = Counter(f"{file.width} × {file.height}" for file in files)
    lines = [
        f"shorter side: {sides[0]} to {sides[-1]} pixels, median {median(sides):g}",
        f"sizes: {_most_common(sizes, 4)}",
        f"kinds: {_most_common(Counter(file.kind for file in files))}",
        f"formats: {_most_common(Counter(file.format for file in files))}",
    ]
    rotated, animated = sum(file.rotated for file in files), sum(file.animated for file in files)
    if rotated:
        lines.append(f"rotated by their EXIF data: {rotated:,}")
    if animated:
        lines.append(f"with several frames, of which the first is read: {animated:,}")
    return lines


def _most_common(counts: Counter[str], number: int | None = None) -> str:
    """List the most frequent values with their counts, and the number of other values."""
    listing = ", ".join(f"{value} ({count:,})" for value, count in counts.most_common(number))
    more = len(counts) - len(counts.most_common(number))
    return listing + (f" and {more:,} more" if more else "")
