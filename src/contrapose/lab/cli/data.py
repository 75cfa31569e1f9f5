"""`contrapose data list` and `data check`: built-in data sets, and checks of your own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tyro.conf import Positional

from contrapose.lab.cli import exits
from contrapose.lab.modalities import Source
from contrapose.lab.modalities.modality import LARGEST_MEGAPIXELS, DataSettings
from contrapose.lab.modalities.progress import allow_progress_bars
from contrapose.validate import check_number

if TYPE_CHECKING:
    from contrapose.lab.modalities.images.inspection import Inspection


@dataclass(frozen=True)
class DataList:
    """List the data sets that are known by name."""

    def __call__(self) -> None:
        """Print one line per data set."""
        from contrapose.lab.modalities.images.digits import DRAWINGS
        from contrapose.lab.modalities.images.file_sets import FILE_SETS
        from contrapose.lab.modalities.images.load import NAMED

        for name, classes in NAMED.items():
            origin = "built in" if name in DRAWINGS else "downloaded by torchvision"
            if name in FILE_SETS and not FILE_SETS[name].download:
                origin = "read by torchvision, which cannot download it any more"
            print(f"{name:14} {classes:4} classes   {origin}")
        print(
            "or the path of a folder of images (with a folder for each class, in train/ and test/ if there are both) "
            "or of an .npz file"
        )


@dataclass(frozen=True)
class DataCheck:
    """Read every image of a data set, and show what training would use: splits, classes, sizes, kinds of images, duplicates,
    broken files and what looks wrong."""

    path: Positional[Path]
    """A folder of images, or an .npz file."""
    classes: str = ""
    """Check some class folders: imagenet100, or a text file with one name per line; empty: all."""
    max_megapixels: float = DataSettings.max_megapixels
    """Largest image file that is read, in millions of pixels, up to 178."""

    @allow_progress_bars()
    def __call__(self) -> None:
        """Print the contents, the warnings and the broken files; exit with 1 if any file is broken."""
        from contrapose.lab.modalities.images.inspection import inspect
        from contrapose.lab.modalities.images.load import load
        from contrapose.lab.modalities.images.stream import with_limit

        check_number("max_megapixels", self.max_megapixels, above=0, most=LARGEST_MEGAPIXELS)
        split = with_limit(load(str(self.path), classes=self.classes), self.max_megapixels)
        for note in split.notes:
            print(note)
        print(f"train: {_contents(split.train)}")
        print(
            f"test:  {_contents(split.test) if split.test is not None else 'no labelled images, so runs will have no score'}"
        )
        if self.path.is_dir():
            _show(inspect(split))


def _show(inspection: Inspection) -> None:
    """Print what was found in the files; exit with 1 if any is broken."""
    from contrapose.lab.modalities.images.inspection import summary

    for line in summary(inspection.files):
        print(line)
    for warning in inspection.warnings:
        print(f"warning: {warning}")
    for problem in inspection.problems:
        print(f"{problem.path}: {problem.why}")
    readable, broken = len(inspection.files), len(inspection.problems)
    print(f"{readable:,} of {readable + broken:,} images can be read")
    if broken:
        print("train, evaluate and embed leave the broken files out with --skip-broken")
        raise SystemExit(exits.FAILED)


def _contents(images: Source) -> str:
    """Describe a split: the number of images, and the classes with their counts."""
    if images.labels is None:
        return f"{len(images):,} images, no classes"
    counts = images.counts()
    if not images.classes or len(counts) > 12:
        return f"{len(images):,} images, {len(counts)} classes of {min(counts):,} to {max(counts):,}"
    listing = ", ".join(f"{name} {count:,}" for name, count in zip(images.classes, counts, strict=True))
    return f"{len(images):,} images, {len(counts)} classes: {listing}"
