"""List the image files in a folder, with one subfolder per class or without classes."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from contrapose.lab.counts import count_of, is_or_are
from contrapose.lab.modalities.images.decoding import ENDINGS
from contrapose.lab.modalities.images.file_list import FileList
from contrapose.lab.modalities.input_files import as_text, read_text

ANNOTATIONS = (
    "val_annotations.txt"  # Tiny-ImageNet's list of validation images: each line has a file name, a class and a box
)
_NAMED = 10  # largest number of missing classes to name in a message
# Picture formats that are not read, although a user may expect it.
_OTHER_PICTURES = frozenset(
    {
        ".heic",
        ".heif",
        ".avif",
        ".jp2",
        ".jxl",
        ".svg",
        ".psd",
        ".eps",
        ".dng",
        ".cr2",
        ".cr3",
        ".nef",
        ".arw",
        ".tga",
        ".exr",
    }
)
_TABLES = (".tsv", ".csv", ".jsonl", ".ndjson", ".txt")  # formats in which captions may be written


@dataclass(frozen=True, eq=False)
class Listing:
    """The image files in a folder in a fixed order, their classes if there are at least two, and notes."""

    paths: FileList
    labels: Tensor | None  # (N,) int64
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()


def visible_folders(folder: Path) -> list[Path]:
    """Return the subfolders in alphabetical order, except hidden folders and folders that macOS adds to archives."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and _visible(path.name))


def loose_images(folder: Path) -> list[Path]:
    """Return the images directly in the folder."""
    return [folder / name for name in _with_endings(_loose_files(folder), ENDINGS)]


def all_images(folder: Path) -> list[Path]:
    """Return the images in the folder and in all its subfolders, except hidden ones."""
    # A subfolder may be a symbolic link, which `os.walk` follows only at its starting point.
    nested = [f"{part.name}/{name}" for part in visible_folders(folder) for name in _files(part)]
    return [folder / name for name in _with_endings([*_loose_files(folder), *nested], ENDINGS)]


def list_images(folder: Path, only: Sequence[str] = ()) -> Listing:
    """List the images in a folder whose subfolders are the classes; `only` names the classes to keep."""
    if not folder.is_dir():
        raise ValueError(f"data: expected a folder of images, but {folder} is not a folder")
    if (folder / ANNOTATIONS).is_file():
        return _list_annotated(folder, only)
    class_folders = visible_folders(folder)
    if only:
        _check_complete(only, {path.name for path in class_folders}, f"have no folder under {folder}")
        class_folders = [path for path in class_folders if path.name in set(only)]
    # Threads, because a listing waits for the disk, and longer for a network file system.
    with ThreadPoolExecutor(8) as threads:
        files = dict(zip([path.name for path in class_folders], threads.map(_files, class_folders), strict=True))
    members = {name: _with_endings(names, ENDINGS) for name, names in files.items()}
    _check_complete(
        only, {name for name, names in members.items() if names}, f"have no images in their folders under {folder}"
    )
    loose_files = _loose_files(folder)
    loose = _with_endings(loose_files, ENDINGS)
    if loose and any(members.values()):
        raise ValueError(
            f"data: {folder} has images beside its class folders, {len(loose)} in all, for example {loose[0]}; move them "
            "into the folders of their classes, or out of this folder"
        )
    if not loose and not any(members.values()):
        raise ValueError(f"data: no images under {folder} (looked for {', '.join(sorted(ENDINGS))})")
    others = _with_endings([*loose_files, *(file for names in files.values() for file in names)], _OTHER_PICTURES)
    pictured = [f"{name}/{file}" for name, names in files.items() for file in names if file.endswith("/")]
    notes = _notes(folder, members, others, pictured)
    if sum(map(bool, members.values())) < 2:  # no labels
        notes += _unread_captions(folder, loose_files)
    if loose:
        return Listing(FileList([(folder, loose)]), None, (), notes)
    members = {name: names for name, names in members.items() if names}
    labels = torch.repeat_interleave(torch.tensor([len(names) for names in members.values()]))
    paths = FileList((folder / name, names) for name, names in members.items())
    return Listing(paths, labels if len(members) > 1 else None, tuple(map(as_text, members)), notes)


def _notes(folder: Path, members: dict[str, list[str]], others: list[str], pictured: list[str]) -> tuple[str, ...]:
    """Return notes on what may surprise a user about these class folders, on pictures that are not read, and on subfolders
    with the name of a picture."""
    notes = []
    classes, empty = ([name for name in members if bool(members[name]) is full] for full in (True, False))
    if len(classes) == 1:
        notes.append(
            f"data: {folder} has one class folder only, {classes[0]}/, so its images have no labels; "
            f"if the classes are inside it, use {folder / classes[0]}"
        )
    if empty:
        rest = f" and {len(empty) - 1:,} more" if len(empty) > 1 else ""
        are = "have no images, so they are not classes" if rest else "has no images, so it is not a class"
        notes.append(f"data: {empty[0]}/{rest} in {folder} {are}")
    if others:
        notes.append(
            f"data: {count_of(len(others), 'file')} under {folder} {is_or_are(len(others))} not read, for example "
            f"{Path(others[0]).name}; "
            "convert them to PNG or JPEG to use them"
        )
    if pictured:
        rest = (
            f" and {len(pictured) - 1:,} more under {folder} are folders"
            if len(pictured) > 1
            else f" under {folder} is a folder"
        )
        notes.append(f"data: {pictured[0]}{rest}, in spite of the ending; only images inside are read")
    return tuple(notes)


def _unread_captions(folder: Path, names: Sequence[str]) -> tuple[str, ...]:
    """Return a note if a file beside images without labels may have their captions, but not the name by which they are found."""
    tables = sorted(name for name in names if Path(name).suffix.lower() in _TABLES and _names_images(folder / name))
    if not tables:
        return ()
    more = f" and {len(tables) - 1:,} more" if len(tables) > 1 else ""
    are = "are" if more else "is"
    return (
        f"data: {as_text(tables[0])}{more} in {folder} {are} not read; a file with captions of these images must be called "
        f"captions{Path(tables[0]).suffix.lower()}",
    )


def _names_images(path: Path) -> bool:
    """Return whether the beginning of a text file contains the name of an image."""
    try:
        if not path.is_file():  # a pipe, which would wait for its writer
            return False
        with path.open("rb") as file:
            head = file.read(4096).lower()
    except OSError:  # a file that may not be read
        return False
    return any(ending.encode() in head for ending in ENDINGS)


def _list_annotated(folder: Path, only: Sequence[str]) -> Listing:
    """List images whose classes are in a file next to them, as in Tiny-ImageNet's val/."""
    lines = read_text(folder / ANNOTATIONS).splitlines()
    class_of = dict(line.split("\t")[:2] for line in lines if "\t" in line)
    names = _with_endings(_files(folder), ENDINGS)
    unknown = [name for name in names if Path(name).name not in class_of]
    if unknown or not names:
        detail = (
            f"{len(unknown)} images that are not in it, for example {Path(unknown[0]).name}" if unknown else "no images"
        )
        raise ValueError(f"data: expected the images of {folder / ANNOTATIONS}, but {folder} has {detail}")
    _check_complete(only, set(class_of.values()), f"are not in {folder / ANNOTATIONS}")
    names = [name for name in names if not only or class_of[Path(name).name] in set(only)]
    found = [class_of[Path(name).name] for name in names]
    classes = sorted(set(found))
    index = {name: label for label, name in enumerate(classes)}
    return Listing(FileList([(folder, names)]), torch.tensor([index[name] for name in found]), tuple(classes))


def _check_complete(only: Sequence[str], existing: Collection[str], missing_from: str) -> None:
    """Refuse a choice of classes if some do not exist: training on the remaining classes would be a different experiment."""
    missing = sorted(set(only) - set(existing))
    if missing:
        more = f" and {len(missing) - _NAMED:,} more" if len(missing) > _NAMED else ""
        raise ValueError(f"classes: {len(missing)} of {len(only)} {missing_from}: {', '.join(missing[:_NAMED])}{more}")


def _loose_files(folder: Path) -> list[str]:
    """Return the names of the files directly in a folder."""
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if not entry.is_dir()]


def _files(folder: Path) -> list[str]:
    """Return the names of all files under a folder, relative to it, except files in hidden folders.

    A subfolder whose name has the ending of an image is listed too, with a slash at its end.
    """
    files: list[str] = []
    for parent, folders, names in os.walk(folder, onerror=_refuse):
        folders[:] = [name for name in folders if _visible(name)]
        names += [f"{name}/" for name in folders if os.path.splitext(name)[1].lower() in ENDINGS]
        inner = os.path.relpath(parent, folder)
        files += names if inner == "." else [f"{inner}/{name}" for name in names]
    return files


def _refuse(error: OSError) -> None:
    """Refuse a folder that cannot be listed; `os.walk` would leave it out, and a class would be missing."""
    raise ValueError(f"data: {error.filename} cannot be listed: {error.strerror}") from error


def _visible(name: str) -> bool:
    return not name.startswith(".") and name != "__MACOSX"


def _with_endings(names: Iterable[str], endings: frozenset[str]) -> list[str]:
    """Return the visible files that have one of these endings, in a fixed order."""
    # A regular expression, because a data set may have millions of files.
    has_ending = re.compile(
        rf"(.*/)?[^./][^/]*({'|'.join(map(re.escape, endings))})", re.IGNORECASE | re.DOTALL
    ).fullmatch
    found = [name for name in names if has_ending(name)]
    # Sorted, because the order of a directory listing depends on the file system, but indices must not depend on it.
    return sorted(found, key=lambda name: name.split("/")) if any("/" in name for name in found) else sorted(found)
