"""Images with captions on disk: a folder with a file of captions, or WebDataset's tars."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from contrapose.lab.modalities.captions.folder import find_tables, read_folder
from contrapose.lab.modalities.captions.read_report import ReadReport
from contrapose.lab.modalities.captions.shapes import is_shapes, read_shapes
from contrapose.lab.modalities.captions.shards import read_tars
from contrapose.lab.modalities.images.decoding import ImagePath
from contrapose.lab.modalities.images.folder import loose_images, visible_folders
from contrapose.lab.modalities.shards import find_tars, first_tar, has_captions, names_tar
from contrapose.lab.modalities.text.records import format_of

_EXPECTED = (
    "expected a folder with captions.tsv (or .csv, .jsonl, .txt, .parquet) and images, a .tar file, or a folder of .tar files "
    "(docs/captions.md)"
)


@dataclass(frozen=True)
class CaptionList:
    """Images with their captions and, if the data has splits, their splits; created by `open_captions`."""

    name: str
    images: tuple[ImagePath, ...]
    captions: tuple[tuple[str, ...], ...]  # captions of each image, at least one
    splits: tuple[str, ...]  # train, val or test for each image; empty if the data has no splits
    notes: tuple[str, ...]  # what may surprise a user about the data, one sentence each
    fingerprint: str  # checksum of the images' names, captions and splits

    def __len__(self) -> int:
        return len(self.images)

    @property
    def parts(self) -> tuple[str, ...]:
        """The former name of `splits`; use `splits` instead."""
        return self.splits


def is_captions(path: Path) -> bool:
    """Return whether a path contains images with captions, without reading them."""
    if path.is_dir():
        # Tars next to folders or images are probably downloads from which the folders or images were unpacked.
        tar = first_tar(path)
        tars_only = tar is not None and not visible_folders(path) and not loose_images(path) and has_captions(tar)
        return bool(find_tables(path, "captions")) or tars_only
    if is_shapes(path):
        return True
    if names_tar(path):  # `open_captions` says what is wrong with tars that do not exist
        tar = first_tar(path)
        return tar is None or has_captions(tar)
    folder = path.parent
    return path in find_tables(folder, "captions") and bool((folder / "images").is_dir() or loose_images(folder))


def open_captions(path: Path, *, columns: Sequence[str] = (), skip_broken: bool = False) -> CaptionList:
    """List images with their captions; the images stay on disk.

    path          a folder with captions.tsv (.csv, .jsonl, .txt, .parquet), or the file itself, with images next to it or in
                  images/; or a WebDataset .tar, a folder of tars, or a pattern such as shards-{0000..0003}.tar; or shapes,
                  the built-in set
    columns       columns of images and captions, and of splits if there are any, by name, or by number from 1 on; empty: the
                  columns with usual names, such as image, file_name, caption, text and split
    skip_broken   leave out unusable rows and members, and accept any number of captions without images; by default, an
                  unusable row is an error, as is a missing image for more than half of the captions or a missing caption for
                  more than half of the images
    """
    file = _captions_file(path)
    if file is not None:
        reading = read_folder(file, columns=columns, skip_broken=skip_broken)
    else:
        tars = find_tars(path)
        if not tars and not is_shapes(path):
            raise ValueError(_unknown(path))
        if columns:
            raise ValueError(f"columns: they are for a file of captions, and {path} has none; leave --columns out")
        reading = read_tars(tars, source=str(path), skip_broken=skip_broken) if tars else read_shapes()
    return _complete(reading, _name(path), skip_broken)


def _captions_file(path: Path) -> Path | None:
    """Return the file of captions in a folder, or the path itself if it is a file of captions; None for other data."""
    if not path.is_dir():
        return path if format_of(path) and path.is_file() else None
    files = find_tables(path, "captions")
    if len(files) > 1:
        names = " and ".join(file.name for file in files)
        raise ValueError(f"data: {path} has {names}; name the one to read, for example --data {files[0]}")
    return files[0] if files else None


def _unknown(path: Path) -> str:
    if not path.exists():
        return f"data: {path} does not exist; {_EXPECTED}"
    if path.is_dir():
        content = "has no captions" if any(path.iterdir()) else "is empty"
        return f"data: {path} {content}; {_EXPECTED}"
    return f"data: cannot tell the format of {path}; {_EXPECTED}"


def _complete(reading: ReadReport, name: str, skip_broken: bool) -> CaptionList:
    """Check the images and captions that were read, and return them with notes on what is left out."""
    if not skip_broken:
        reading.check_shares()
    reading.make_notes()
    reading.leave_out_without_split()
    reading.check_not_empty()
    images = tuple(reading.captions)
    captions = tuple(tuple(texts) for texts in reading.captions.values())
    splits = tuple(reading.splits[image] for image in images) if reading.splits else ()
    digest = hashlib.blake2b(digest_size=8)
    for number, image in enumerate(images):
        # Names exclude the folders above them, so that a data set keeps its fingerprint when it is moved.
        row = [f"{image.parent.name}/{image.name}", captions[number], splits[number] if splits else ""]
        digest.update(json.dumps(row).encode())
    return CaptionList(name, images, captions, splits, tuple(reading.notes), digest.hexdigest())


def _name(path: Path) -> str:
    """Return the name of a data set: the name of its folder, or of its tars."""
    return path.parent.name or path.name if format_of(path) and not path.is_dir() else path.name or path.resolve().name
