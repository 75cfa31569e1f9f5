"""PASCAL VOC as a classification task, in which an image can have several classes."""

from __future__ import annotations

from pathlib import Path

import torch

from contrapose.lab.modalities.images.stream import Files
from contrapose.lab.modalities.input_files import as_text, read_text
from contrapose.lab.modalities.source import Split


def load_voc(folder: Path) -> Split:
    """List the images in a VOC folder with JPEGImages/ and ImageSets/Main/: trainval to train on and test to score on.

    Labels are (N, classes), 1 for each class that an image shows. Objects marked as difficult do not give their image the
    class; the challenge counts such images as neither right nor wrong.
    """
    # The first of several years is used; sorted, because the order of a directory listing is arbitrary.
    years = (*sorted(folder.glob("VOC*")), *sorted(folder.glob("VOCdevkit/VOC*")))
    folder = next((path for path in (folder, *years) if _has_lists(path)), folder)
    if not _has_lists(folder):
        raise ValueError(f"data: expected a folder of PASCAL VOC with ImageSets/Main/*_trainval.txt, got {folder}")
    train, test = _part(folder, "trainval"), _part(folder, "test")
    if train.classes != test.classes:
        raise ValueError(f"data: the lists of trainval and of test in {folder} have different classes")
    return Split(train, train, test)


def _has_lists(folder: Path) -> bool:
    return any((folder / "ImageSets" / "Main").glob("*_trainval.txt"))


def _part(folder: Path, part: str) -> Files:
    """Read which images in a split show which classes: one file per class, with 1, 0 or -1 in one line per image."""
    files = sorted((folder / "ImageSets" / "Main").glob(f"*_{part}.txt"))
    if not files:
        raise ValueError(
            f"data: {folder} has no ImageSets/Main/*_{part}.txt; VOC 2007 has its test images in a second archive"
        )
    columns: list[list[int]] = []
    names: list[str] = []
    for file in files:
        lines = [line.split() for line in read_text(file).splitlines() if line.strip()]
        listed = [line[0] for line in lines]
        if any(len(line) != 2 for line in lines) or (columns and listed != names):
            raise ValueError(
                f"data: {file}: expected an image and 1, 0 or -1 in each line, for the images of {files[0].name}"
            )
        names = listed
        columns.append([int(present == "1") for _, present in lines])
    paths = tuple(folder / "JPEGImages" / f"{name}.jpg" for name in names)
    classes = tuple(as_text(file.name).removesuffix(f"_{part}.txt") for file in files)
    return Files(f"{folder.name} ({part})", paths, torch.tensor(columns).T.contiguous(), classes)
