"""`contrapose data`: list the known data sets, check your own data, and copy images to files that are faster to read."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from contrapose.lab.cli import exits
from contrapose.lab.devices import DeviceOption, own_device
from contrapose.lab.modalities import MODALITIES, DataSettings, modality, recognise
from contrapose.lab.modalities.modality import LARGEST_MEGAPIXELS, BrokenFiles
from contrapose.lab.modalities.progress import allow_progress_bars
from contrapose.validate import check_count, check_known, check_number


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


@dataclass(frozen=True)
class DataPack(DeviceOption):
    """Copy a folder of images to one file, decoded and resized once, from which training reads faster.

    The file has the squares that `train` makes of the images if it reads the folder into memory, so the results are the same.
    With --stream, `train` crops its views out of the whole images instead, so results differ. The file is memory-mapped and may
    be larger than the memory. It has 3 bytes per pixel: 20 GB for 100,000 images and views of 224 pixels. If the folder changes
    later, the file is refused.
    """

    path: Positional[Path]
    """A folder of images."""
    out: Annotated[Path, arg(aliases=["-o"])]
    """The file to write; it ends with .safetensors. Use it as `train --data FILE`."""
    size: int = 0
    """Width and height of the views to train with, in pixels; 0: as `train` would choose, or those of --views."""
    views: str = "auto"
    """Augmentation recipe to train with, as in `train`; it determines the share of an image that evaluation crops."""
    hold_out: float = DataSettings.hold_out
    """Share of each class that is held out for evaluation if the folder has no labelled test images; 0: none."""
    skip_broken: bool = False
    """Leave out files that cannot be read. By default, the first unreadable file is an error."""
    max_megapixels: float = DataSettings.max_megapixels
    """Maximum size of an image file to read, in millions of pixels; at most 178."""

    @allow_progress_bars()
    def __call__(self) -> None:
        """Write the file and print how to train with it."""
        check_number("max_megapixels", self.max_megapixels, above=0, most=LARGEST_MEGAPIXELS)
        check_number("hold_out", self.hold_out, least=0, most=0.99)
        settings = DataSettings(
            data=str(self.path),
            hold_out=self.hold_out,
            skip_broken=self.skip_broken,
            max_megapixels=self.max_megapixels,
        )
        kind = modality(recognise(settings.data))
        for line in kind.pack(settings, self.out, views=self.views, size=self.size, device=own_device()):
            print(line)


@dataclass(frozen=True)
class DataConvert:
    """Copy a folder of images to WebDataset's tars or LitData's chunks, which network disks and object stores read faster than
    single files.

    Files are copied as they are, in a random order, with their classes. `train --data OUT --stream` reads one file after the
    other and shuffles windows of 8,192 images; every epoch has every image once, and a run can be resumed at any step.
    """

    path: Positional[Path]
    """A folder of images."""
    out: Annotated[Path, arg(aliases=["-o"])]
    """The folder to write to; it must be empty, or not exist."""
    to: str = "webdataset"
    """The format: webdataset (tars), or litdata (chunks and index.json, in train/ and test/ if the folder has both)."""
    images_per_file: int = 1000
    """Number of images in a tar or chunk; larger ones are read faster, smaller ones are easier to copy."""

    @allow_progress_bars()
    def __call__(self) -> None:
        """Write the files and print how to train with them."""
        check_count("images_per_file", self.images_per_file, least=1)
        check_known("to", self.to, ("webdataset", "litdata"))
        kind = modality(recognise(str(self.path)))
        for line in kind.convert(self.path, self.out, to=self.to, samples_per_file=self.images_per_file):
            print(line)
