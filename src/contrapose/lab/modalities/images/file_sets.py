"""Data sets that torchvision downloads as image files: their training and test files, which stay on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from contrapose.lab.modalities.images.layout import with_held_out
from contrapose.lab.modalities.images.stream import Files
from contrapose.lab.modalities.source import Split


@dataclass(frozen=True)
class FileSet:
    """A torchvision data set, and its splits for training and testing; without a test split, test images are held out."""

    dataset: str  # the class in torchvision.datasets
    classes: int
    train: tuple[str, ...] = ("train",)
    test: str = "test"
    download: bool = True  # whether torchvision can still download it


# Training splits are the same as in ELEVATER; for some data sets they include validation images.
FILE_SETS: Mapping[str, FileSet] = {
    "caltech101": FileSet("Caltech101", 101, train=("",), test=""),
    "country211": FileSet("Country211", 211),
    "dtd": FileSet("DTD", 47, train=("train", "val")),
    "eurosat": FileSet("EuroSAT", 10, train=("",), test=""),
    "fgvc-aircraft": FileSet("FGVCAircraft", 100, train=("trainval",)),
    "flowers102": FileSet("Flowers102", 102, train=("train", "val")),
    "food101": FileSet("Food101", 101),
    "gtsrb": FileSet("GTSRB", 43),
    "oxford-pets": FileSet("OxfordIIITPet", 37, train=("trainval",)),
    "rendered-sst2": FileSet("RenderedSST2", 2),
    "stanford-cars": FileSet("StanfordCars", 196, download=False),
}


def load_file_set(name: str, root: Path, *, hold_out: float) -> Split:
    """List the files in a data set; if they are not in `root` yet, torchvision downloads them if it can."""
    from torchvision import datasets

    file_set = FILE_SETS[name]
    make = getattr(datasets, file_set.dataset)

    def files(splits: tuple[str, ...], title: str) -> Files:
        options = {"root": str(root), "download": file_set.download}
        parts = [make(**options, **({"split": split} if split else {})) for split in splits]
        listed = [sample for part in parts for sample in _samples(part)]
        labels = torch.tensor([label for _, label in listed])
        return Files(title, tuple(Path(path) for path, _ in listed), labels, _class_names(parts[0]))

    train = files(file_set.train, name)
    if file_set.test:
        return Split(train, train, files((file_set.test,), f"{name} (test)"))
    return with_held_out(Split(train, None, None), hold_out)


def _samples(dataset: Any) -> list[tuple[Any, int]]:
    """Return the path and the class of each image."""
    # Iterating over the data set would decode every image, so its file lists are read, whose attribute names differ.
    if hasattr(dataset, "index"):  # Caltech101
        folder = Path(dataset.root) / "101_ObjectCategories"
        numbered = zip(dataset.y, dataset.index, strict=True)
        return [(folder / dataset.categories[c] / f"image_{i:04d}.jpg", c) for c, i in numbered]
    for name in ("samples", "_samples"):
        if hasattr(dataset, name):
            return list(getattr(dataset, name))
    paths = getattr(dataset, "_image_files", None) or getattr(dataset, "_images", None)
    if paths is None or not hasattr(dataset, "_labels"):
        raise ValueError(
            f"data: this version of torchvision does not list the files of {type(dataset).__name__}; give a folder with "
            "train/ and test/, class folders inside"
        )
    return list(zip(paths, dataset._labels, strict=True))


def _class_names(dataset: Any) -> tuple[str, ...]:
    """Return the class names in the order of the labels; empty if torchvision does not have them."""
    names: Sequence[str] = getattr(dataset, "categories", ())
    return tuple(str(name) for name in getattr(dataset, "classes", names))
