"""Find the training and the test images in a folder with any of the usual layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from contrapose.lab.modalities.images.folder import ANNOTATIONS, Listing, list_images, loose_images, visible_folders
from contrapose.lab.modalities.images.sampling import hold_out as draw_held_out
from contrapose.lab.modalities.images.stream import Files
from contrapose.lab.modalities.input_files import as_text
from contrapose.lab.modalities.source import Split

# In order of preference for evaluation. Names are compared in lower case: Train/ and Test/ must not become two classes.
NO_SCORE = "so runs will have no score"  # for the note on training images without classes
_PARTS = {"train": ("train", "training"), "test": ("test", "testing"), "val": ("val", "valid", "validation")}


def split_folder(folder: Path, only: Sequence[str] = (), *, hold_out: float) -> Split:
    """List the training and test images in a folder; `only` names the classes to keep.

    Without labelled test images, the share `hold_out` of each training class is held out for evaluation.
    """
    if not folder.is_dir():
        raise ValueError(f"data: expected a folder of images, but {folder} is not a folder")
    parts = _find_parts(folder)
    if "train" not in parts:
        listing = list_images(folder, only)
        return with_held_out(Split(Files.listed(folder.name, listing), None, None, listing.notes), hold_out)
    listing = list_images(parts["train"], only)
    train = Files.listed(f"{folder.name} (train)", listing)
    notes = (*listing.notes, *_ignored(folder, parts))
    others = [path for name, path in parts.items() if name != "train"]
    if train.labels is None:
        detail = f", and {_names(others)} cannot be used" if others else ""
        no_score = f"data: the images of {parts['train']} have no classes, {NO_SCORE}{detail}"
        return Split(train, None, None, (*notes, no_score))
    test, test_notes = _find_test(others, only, train)
    notes += test_notes
    return (
        with_held_out(Split(train, None, None, notes), hold_out) if test is None else Split(train, train, test, notes)
    )


def _find_test(folders: Sequence[Path], only: Sequence[str], train: Files) -> tuple[Files | None, tuple[str, ...]]:
    """Return the images in the first of these folders that has classes, and notes on the choice."""
    notes: tuple[str, ...] = ()
    for position, path in enumerate(folders):
        listing = _list_labelled(path, only, train.classes)
        if listing is not None:
            unused = folders[position + 1 :]
            if len(folders) > 1:
                notes += (f"data: evaluation uses {path}" + (f"; {_names(unused)} is not used" if unused else ""),)
            test = Files.listed(f"{train.name.removesuffix(' (train)')} ({path.name})", listing)
            return _align_labels(test, train), (*notes, *listing.notes)
        notes += (
            f"data: {path} has no class folders and is not used; to evaluate on its images, sort them into folders with the "
            "names of the training classes",
        )
    return None, notes


def _find_parts(folder: Path) -> dict[str, Path]:
    """Return the subfolders that are splits of a data set, keyed by role: train, test, val."""
    found: dict[str, Path] = {}
    for role, names in _PARTS.items():
        folders = [path for path in visible_folders(folder) if path.name.lower() in names]
        if len(folders) > 1:
            raise ValueError(f"data: {folder} has both {_names(folders)}; expected one folder of {role} images")
        if folders:
            found[role] = folders[0]
    if found and "train" not in found:
        raise ValueError(
            f"data: {folder} has {_names(list(found.values()))} but no train/; name the folder of the training images train, "
            "or give the other folder another name if it is a class"
        )
    return found


def _list_labelled(folder: Path, only: Sequence[str], train_classes: Sequence[str]) -> Listing | None:
    """List the images in test/ or val/; return None if they have no classes."""
    folders = [as_text(path.name) for path in visible_folders(folder)]
    # A single folder may be one of the training classes, or just a folder of images, as in Tiny-ImageNet's test/.
    if not (folder / ANNOTATIONS).is_file() and len(folders) < 2 and not set(folders) & set(train_classes):
        return None
    listing = list_images(folder, only)
    if len(listing.classes) == 1:
        return replace(listing, labels=torch.zeros(len(listing.paths), dtype=torch.long), notes=())
    return listing if listing.labels is not None else None


def _ignored(folder: Path, parts: dict[str, Path]) -> tuple[str, ...]:
    """Return a note on other folders and files next to train/ and test/."""
    beside = [path.name + "/" for path in visible_folders(folder) if path not in parts.values()]
    beside += [path.name for path in loose_images(folder)]
    if not beside:
        return ()
    are = f"and {len(beside) - 1:,} more in {folder} are" if len(beside) > 1 else f"in {folder} is"
    return (f"data: {beside[0]} {are} not used, only {_names(list(parts.values()))} are",)


def _names(folders: Sequence[Path]) -> str:
    return " and ".join(f"{path.name}/" for path in folders)


def with_held_out(split: Split, share: float) -> Split:
    """Move a share of each training class to the test images, with a note; a share of 0 moves nothing."""
    train = split.train
    if train.labels is None or not share:
        return split
    stays, held = draw_held_out(train.labels, share)
    if not len(held):
        return split
    assert isinstance(train, Files)
    test = replace(train.subset(held), name=f"{train.name.removesuffix(' (train)')} (held out)")
    rest = train.subset(stays)
    note = (
        f"data: no labelled test images, so {100 * share:g} % of each class, {len(held):,} images, are held out for evaluation; "
        "--hold-out changes the share"
    )
    return Split(rest, rest, test, (*split.notes, note))


def _align_labels(held_out: Files, train: Files) -> Files:
    """Return the held-out images, with labels replaced by the training images' class indices."""
    # Class indices count subfolders, so they would differ if the held-out folder lacks a class; names are matched instead.
    assert held_out.labels is not None
    unknown = [name for name in held_out.classes if name not in train.classes]
    if unknown:
        by_lower_case = {name.lower(): name for name in train.classes}
        similar = by_lower_case.get(unknown[0].lower())
        hint = f"; it differs from {similar!r} only by case: rename one of the folders" if similar else ""
        raise ValueError(
            f"data: the test images have a class {unknown[0]!r} that the training images do not have{hint}"
        )
    train_label = torch.tensor([train.classes.index(name) for name in held_out.classes])
    return replace(held_out, labels=train_label[held_out.labels], classes=train.classes)
