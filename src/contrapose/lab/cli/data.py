"""`contrapose data list` and `data check`: list the known data sets, and check your own data."""

from __future__ import annotations

import shlex
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
            "in each of the two), of a file of texts, or of a folder of images with captions"
        )


@dataclass(frozen=True)
class DataCheck:
    """Read a data set of images, texts or images with captions, and show what training would use: splits, classes, sizes,
    lengths, duplicates, files or lines that cannot be read, and anything that looks wrong."""

    path: Positional[Path]
    """A folder of images, an .npz file, a file of texts, or a folder or tars of images with captions."""
    classes: str = ""
    """Check only some class folders: imagenet100, or a text file with one folder name per line; empty: all folders."""
    columns: tuple[str, ...] = ()
    """Columns to read from a file of texts or captions, as in `train`."""
    max_megapixels: float = DataSettings.max_megapixels
    """Maximum size of an image file to read, in millions of pixels; at most 178."""

    @allow_progress_bars()
    def __call__(self) -> None:
        """Print what the data contains, the warnings and the command that trains on it; exit with code 1 if a file is broken."""
        check_number("max_megapixels", self.max_megapixels, above=0, most=LARGEST_MEGAPIXELS)
        settings = DataSettings(
            data=str(self.path), classes=self.classes, columns=self.columns, max_megapixels=self.max_megapixels
        )
        kind = modality(recognise(settings.data))
        kind.check_settings(settings)
        try:
            for line in kind.inspect(settings):
                print(line)
        except BrokenFiles as error:
            print(f"train with: {self._training_command()} --skip-broken")
            raise SystemExit(exits.FAILED) from error
        print(f"train with: {self._training_command()}")

    def _training_command(self) -> str:
        """Return the command that trains on this data, with the options that were given here."""
        words = ["contrapose", "train", "--data", str(self.path)]
        words += ["--classes", self.classes] if self.classes else []
        words += ["--columns", *self.columns] if self.columns else []
        if self.max_megapixels != DataSettings.max_megapixels:
            words += ["--max-megapixels", f"{self.max_megapixels:g}"]
        return shlex.join(words)
