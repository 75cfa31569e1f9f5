"""`contrapose data list`, `data check`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from contrapose.cli import exits
from contrapose.modalities import Source


@dataclass(frozen=True)
class DataList:
    """Name the data sets that need no path."""

    def __call__(self) -> None:
        """One line each."""
        from contrapose.modalities.images.load import NAMED

        for name, classes in NAMED.items():
            print(f"{name:10} {classes:4} classes   {'built in' if name == 'digits' else 'through torchvision'}")
        print(
            "or the path of a folder of images (train/ and test/ inside it, class folders inside those), or of an .npz file"
        )


@dataclass(frozen=True)
class DataCheck:
    """Read every image once, name every broken file, and say what a training would see: parts, classes, counts."""

    path: Positional[Path]
    """A folder of images, or an .npz file."""

    def __call__(self) -> None:
        """Exit code 1 if a file is broken."""
        from contrapose.modalities.images.folder import check_folder
        from contrapose.modalities.images.load import load

        split = load(str(self.path), stream=self.path.is_dir())
        print(f"train: {_contents(split.train)}")
        print(f"test:  {_contents(split.test) if split.test is not None else 'none with labels, so nothing is scored'}")
        if not self.path.is_dir():
            return
        count, problems = check_folder(self.path)
        for problem in problems:
            print(f"{problem.path}: {problem.why}")
        print(f"{count - len(problems):,} of {count:,} images can be read")
        if problems:
            raise SystemExit(exits.FAILED)


def _contents(images: Source) -> str:
    """How many there are, and of which classes."""
    if images.labels is None:
        alone = f" (the one class folder, {images.classes[0]}, counts as none)" if len(images.classes) == 1 else ""
        return f"{len(images):,} images, no classes{alone}"
    counts = images.counts()
    if not images.classes or len(counts) > 12:
        return f"{len(images):,} images, {len(counts)} classes of {min(counts):,} to {max(counts):,}"
    each = ", ".join(f"{name} {count:,}" for name, count in zip(images.classes, counts, strict=True))
    return f"{len(images):,} images, {len(counts)} classes: {each}"
