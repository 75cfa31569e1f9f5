"""`contrapose data list` and `data check`: built-in data sets, and checks of your own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from contrapose.cli import exits
from contrapose.modalities import Source


@dataclass(frozen=True)
class DataList:
    """List the data sets that are known by name."""

    def __call__(self) -> None:
        """Print one line per data set."""
        from contrapose.modalities.images.load import NAMED

        for name, classes in NAMED.items():
            print(f"{name:10} {classes:4} classes   {'built in' if name == 'digits' else 'downloaded by torchvision'}")
        print(
            "or the path of a folder of images (with train/ and test/, and a folder for each class in both) or of an .npz file"
        )


@dataclass(frozen=True)
class DataCheck:
    """Read every image of a data set, list the broken files, and show the splits, classes and counts that training would use."""

    path: Positional[Path]
    """A folder of images, or an .npz file."""

    def __call__(self) -> None:
        """Print the contents and the broken files; exit with 1 if there are any."""
        from contrapose.modalities.images.folder import check_folder
        from contrapose.modalities.images.load import load

        # Streaming lists a folder without decoding it: a broken file must be reported, not end the command.
        split = load(str(self.path), stream=self.path.is_dir())
        print(f"train: {_contents(split.train)}")
        print(
            f"test:  {_contents(split.test) if split.test is not None else 'no labelled images, so runs will have no score'}"
        )
        if not self.path.is_dir():
            return
        count, problems = check_folder(self.path)
        for problem in problems:
            print(f"{problem.path}: {problem.why}")
        print(f"{count - len(problems):,} of {count:,} images can be read")
        if problems:
            raise SystemExit(exits.FAILED)


def _contents(images: Source) -> str:
    """Describe a split: the number of images, and the classes with their counts."""
    if images.labels is None:
        note = f" (a single class folder, {images.classes[0]}, gives no labels)" if len(images.classes) == 1 else ""
        return f"{len(images):,} images, no classes{note}"
    counts = images.counts()
    if not images.classes or len(counts) > 12:
        return f"{len(images):,} images, {len(counts)} classes of {min(counts):,} to {max(counts):,}"
    listing = ", ".join(f"{name} {count:,}" for name, count in zip(images.classes, counts, strict=True))
    return f"{len(images):,} images, {len(counts)} classes: {listing}"
