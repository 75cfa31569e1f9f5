"""Load data sets by name or by path."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from contrapose.modalities.images.digits import digits
from contrapose.modalities.images.folder import read_folder
from contrapose.modalities.images.imagenet100 import IMAGENET100
from contrapose.modalities.images.images import Images, channels_first
from contrapose.modalities.images.stream import Files
from contrapose.modalities.modality import Split
from contrapose.validate import nearest

# Data sets that can be loaded by name, and their numbers of classes.
NAMED = {"digits": 10, "cifar10": 10, "cifar100": 100, "svhn": 10, "stl10": 10}


def load(name: str, *, limit: int = 0, root: Path | None = None, stream: bool = False, classes: str = "") -> Split:
    """Load a data set by name (downloaded to `root` if needed), from a folder of images or from an .npz file.

    With `stream`, the images of a folder stay on disk until they are needed. `classes` keeps some class folders:
    "imagenet100", or a text file with one name per line. `limit` keeps the first images for training; 0 keeps all.
    """
    check_name(name)
    only = class_list(classes)
    if only and not Path(name).is_dir():
        raise ValueError(f"classes: only a folder with one subfolder per class has a choice of classes, got {name}")
    if stream and not Path(name).is_dir():
        raise ValueError(f"stream: only a folder of images can be streamed, got {name}")
    if name == "digits":
        train = digits(limit or 5000)
        # A short trial run gets few test images too, so that its evaluation does not take longer than its training.
        return Split(train, train, digits(min(2000, max(200, len(train))), train=False))
    if name.endswith(".npz"):
        split = _from_npz(Path(name))
    elif name in NAMED:
        split = _torchvision(name, root or Path("data"))
    else:
        read: Callable[..., Images | Files] = Files.of if stream else read_folder
        split = _from_folder(Path(name), lambda folder: read(folder, only))
    if not limit:
        return split
    if limit > len(split.train):
        raise ValueError(f"limit: expected at most the {len(split.train)} training images of {name}, got {limit}")
    first = range(limit)
    # A separate probe set (STL-10's labelled images) is not limited: only training is.
    probe = split.probe.subset(first) if split.probe is split.train and split.probe is not None else split.probe
    return Split(split.train.subset(first), probe, split.test)


def class_list(classes: str) -> tuple[str, ...]:
    """Return the names of the class folders to keep; empty keeps all."""
    if not classes:
        return ()
    if classes == "imagenet100":
        return IMAGENET100
    if not Path(classes).is_file():
        raise ValueError(f"classes: expected imagenet100 or a text file with one name per line, got {classes!r}")
    return tuple(Path(classes).read_text().split())


def check_name(name: str) -> None:
    """Raise ValueError if `name` is neither a known data set nor an existing path; read nothing."""
    if name in NAMED or Path(name).exists():
        return
    hint = nearest(name, NAMED)
    raise ValueError(
        f"data: expected one of {', '.join(NAMED)}, a folder of images or an .npz file, got {name!r}{hint}"
        + ("" if hint else ", which does not exist (relative paths start at the working directory)")
    )


def _from_npz(path: Path) -> Split:
    """Load an .npz file with MedMNIST's arrays: train_images, train_labels, test_images, test_labels."""
    import numpy as np

    try:
        archive = np.load(path, allow_pickle=False)  # unpickling could run code from the file
    except (ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"data: {path} is not an .npz file") from error
    with archive as file:
        if "train_images" not in file:
            raise ValueError(f"{path}: expected the array train_images, found {', '.join(file.files) or 'nothing'}")

        def read_part(part: str) -> Images | None:
            if f"{part}_images" not in file:
                return None
            labels = _labels(path, f"{part}_labels", file) if f"{part}_labels" in file else None
            array = file[f"{part}_images"]
            if (
                array.dtype != np.uint8
                or array.ndim not in (3, 4)
                or (array.ndim == 4 and array.shape[3] not in (1, 3))
            ):
                raise ValueError(
                    f"{path}: {part}_images: expected uint8 of shape (N, H, W) or (N, H, W, 3), channels last, "
                    f"got {array.dtype} {array.shape}"
                )
            pixels = channels_first(torch.from_numpy(array))
            return Images(f"{path.name} ({part})", pixels, labels)

        train, test = read_part("train"), read_part("test")
    assert train is not None
    # Classification needs labels on both sides; without them only training is possible.
    probe = train if train.labels is not None and test is not None and test.labels is not None else None
    return Split(train, probe, test if probe is not None else None)


def _labels(path: Path, name: str, file: Any) -> Tensor:
    """Read an array of class indices as int64 (N,)."""
    array = file[name].reshape(-1)  # MedMNIST's labels are (N, 1)
    # NaN fails the last test, since it differs from itself; a plain cast would make it a valid-looking integer.
    if array.dtype.kind not in "iuf" or (array < 0).any() or (array != array.round()).any():
        raise ValueError(
            f"{path}: {name}: expected whole numbers of at least 0, one for each image, got {_summary(array)}"
        )
    return torch.from_numpy(array.astype("int64"))


def _summary(array: Any) -> str:
    """Return the data type of an array and up to three of its values, for an error message."""
    return f"{array.dtype} such as {', '.join(str(value) for value in sorted(set(array.tolist()), key=str)[:3])}"


def _torchvision(name: str, root: Path) -> Split:
    """Load a data set through torchvision, which downloads it to `root` if it is not there yet."""
    from torchvision import datasets

    def images(data: Any, labels: Any, title: str) -> Images:
        pixels = torch.as_tensor(data)
        # SVHN and STL-10 have channels first in torchvision, CIFAR has them last.
        pixels = pixels if pixels.shape[1] == 3 else channels_first(pixels)
        return Images(title, pixels, None if labels is None else torch.as_tensor(labels, dtype=torch.long))

    try:
        if name in ("cifar10", "cifar100"):
            dataset = datasets.CIFAR10 if name == "cifar10" else datasets.CIFAR100
            train, test = (dataset(str(root), train=part, download=True) for part in (True, False))
            first, second = images(train.data, train.targets, name), images(test.data, test.targets, f"{name} (test)")
            return Split(first, first, second)
        if name == "svhn":
            train, test = (datasets.SVHN(str(root), split=part, download=True) for part in ("train", "test"))
            first, second = images(train.data, train.labels, name), images(test.data, test.labels, f"{name} (test)")
            return Split(first, first, second)
        parts = {p: datasets.STL10(str(root), split=p, download=True) for p in ("train+unlabeled", "train", "test")}
    except (OSError, RuntimeError) as error:
        raise ValueError(
            f"data: {name} is not under {root} and could not be downloaded ({error}); "
            f"put torchvision's files under {root}, or pass an .npz file with train_images, train_labels, test_images and "
            "test_labels"
        ) from error
    probe, test = (images(parts[p].data, parts[p].labels, f"{name} ({p})") for p in ("train", "test"))
    return Split(images(parts["train+unlabeled"].data, None, name), probe, test)


def _align_labels(held_out: Images | Files, train: Images | Files) -> Images | Files:
    """Return the held-out images with the class indices of the training images."""
    # Class indices count the subfolders, so they differ if the held-out folder lacks a class; names are matched instead.
    if held_out.labels is None or train.labels is None:
        return held_out
    unknown = [name for name in held_out.classes if name not in train.classes]
    if unknown:
        raise ValueError(f"data: the test images have a class {unknown[0]!r} that the training images do not have")
    train_label = torch.tensor([train.classes.index(name) for name in held_out.classes])
    return replace(held_out, labels=train_label[held_out.labels], classes=train.classes)


def _from_folder(path: Path, read: Callable[[Path], Images | Files]) -> Split:
    """Load a folder; its subfolders train and test, or train and val as in ImageNet, are the two parts if they exist."""

    def read_part(name: str) -> Images | Files:
        return replace(read(path / name), name=f"{path.name} ({name})")

    if (path / "train").is_dir():
        train = read_part("train")
        held_out = next((_align_labels(read_part(p), train) for p in ("test", "val") if (path / p).is_dir()), None)
        labelled = held_out is not None and held_out.labels is not None and train.labels is not None
        return Split(train, train if labelled else None, held_out if labelled else None)
    return Split(read(path), None, None)
