"""`contrapose data list` and `data check`: list the known data sets, and check your own data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from contrapose.lab.cli import exits
from contrapose.lab.modalities import MODALITIES, DataSettings, modality, recognise
from contrapose.lab.modalities.modality import LARGEST_MEGAPIXELS, BrokenFiles
from contrapose.lab.modalities.progress import allow_progress_bars
from contrapose.validate import check_number


@dataclass(frozen=True)
class DataList:
    """List the data sets that are known by name."""

    def __call__(self) -> None:
        """Print one line per data set."""
        for kind in map(modality, MODALITIES):
            for line in kind.list_data():
                print(line)
        print(
            "or the path of an .npz file, or of a folder of images (one subfolder per class; if the folder has train/ and test/, "
            "in each of the two)"
        )


@dataclass(frozen=True)
class DataCheck:
    """Read every image in a data set, and show what training would use: splits, classes, sizes, kinds of images, duplicates,
    broken files and anything that looks wrong."""

    path: Positional[Path]
    """A folder of images, or an .npz file."""
    classes: str = ""
    """Check only some class folders: imagenet100, or a text file with one folder name per line; empty: all folders."""
    max_megapixels: float = DataSettings.max_megapixels
    """Maximum size of an image file to read, in millions of pixels; at most 178."""

    @allow_progress_bars()
    def __call__(self) -> None:
        """Print what the data contains, the warnings and the broken files; exit with code 1 if any file is broken."""
        check_number("max_megapixels", self.max_megapixels, above=0, most=LARGEST_MEGAPIXELS)
        data = str(self.path)
        settings = DataSettings(data=data, classes=self.classes, max_megapixels=self.max_megapixels)
        try:
            for line in modality(recognise(data)).inspect(settings):
                print(line)
        except BrokenFiles as error:
            raise SystemExit(exits.FAILED) from error
