"""`contrapose data list` and `data check`: built-in data sets, and checks of your own."""

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
        check_number("max_megapixels", self.max_megapixels, above=0, most=LARGEST_MEGAPIXELS)
        data = str(self.path)
        settings = DataSettings(data=data, classes=self.classes, max_megapixels=self.max_megapixels)
        try:
            for line in modality(recognise(data)).inspect(settings):
                print(line)
        except BrokenFiles as error:
            raise SystemExit(exits.FAILED) from error
