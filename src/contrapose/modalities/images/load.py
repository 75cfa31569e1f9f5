"""Data sets by name or by path."""

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

# What can be named: classes, and where torchvision has it.
NAMED = {"digits": 10, "cifar10": 10, "cifar100": 100, "svhn": 10, "stl10": 10}


def load(name: str, *, limit: int = 0, root: Path | None = None, stream: bool = False, classes: str = "") -> Split:
    """A data set by name (downloaded to `root` if it is not there), a folder of images, or an .npz file.

    With `stream`, the images of a folder stay on disk until they are needed. `classes` keeps some class folders:
    "imagenet100", or a text file with a name in each line.
    """
    check_name(name)
    only = class_list(classes)
    if only and not Path(name).is_dir():
        raise ValueError(f"classes: only a folder of class folders can be narrowed, and {name} is none")
    if stream and not Path(name).is_dir():
        raise ValueError(f"stream: only a folder of images can be streamed, and {name} is none")
    if name == "digits":
        train = digits(limit or 5000)
        # A small part is tested on few images: it is for trying things out.
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
        raise ValueError(f"limit: {limit} images are more than the {len(split.train)} of {name}")
    first = range(limit)
    probe = split.probe.subset(first) if split.probe is split.train and split.probe is not None else split.probe
    return Split(split.train.subset(first), probe, split.test)


def class_list(classes: str) -> tuple[str, ...]:
    """The names that `classes` stands for; none: all."""
    if not classes:
        return ()
    if classes == "imagenet100":
        return IMAGENET100
    if not Path(classes).is_file():
        raise ValueError(f"classes: expected imagenet100 or a text file with a name in each line, got {classes!r}")
    return tuple(Path(classes).read_text().split())


def check_name(name: str) -> None:
    """Refuse a name that is neither known nor a path that exists, before anything is read."""
    if name in NAMED or Path(name).exists():
        return
    hint = nearest(name, NAMED)
    raise ValueError(
        f"data: expected one of {', '.join(NAMED)}, a folder of images or an .npz file, got {name!r}{hint}"
        + ("" if hint else ", which is not there (a relative path begins at the working directory)")
    )


def _from_npz(path: Path) -> Split:
    """MedMNIST's names: train_images, train_labels, test_images, test_labels."""
    import numpy as np

    try:
        opened = np.load(path, allow_pickle=False)
    except (ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"data: {path} is not an .npz file") from error
    with opened as file:
        if "train_images" not in file:
            raise ValueError(f"{path}: expected the array train_images, found {', '.join(file.files) or 'nothing'}")

        def part(which: str) -> Images | None:
            if f"{which}_images" not in file:
                return None
            labels = _labels(path, f"{which}_labels", file) if f"{which}_labels" in file else None
            array = file[f"{which}_images"]
            if (
                array.dtype != np.uint8
                or array.ndim not in (3, 4)
                or (array.ndim == 4 and array.shape[3] not in (1, 3))
            ):
                raise ValueError(
                    f"{path}: {which}_images: expected uint8 of shape (N, H, W) or (N, H, W, 3), channels last, "
                    f"got {array.dtype} {array.shape}"
                )
            pixels = channels_first(torch.from_numpy(array))
            return Images(f"{path.name} ({which})", pixels, labels)

        train, test = part("train"), part("test")
    assert train is not None
    probe = train if train.labels is not None and test is not None and test.labels is not None else None
    return Split(train, probe, test if probe is not None else None)


def _labels(path: Path, name: str, file: Any) -> Tensor:
    found = file[name].reshape(-1)
    if found.dtype.kind not in "iuf" or (found < 0).any() or (found != found.round()).any():
        raise ValueError(
            f"{path}: {name}: expected whole numbers of at least 0, one for each image, got {_glance(found)}"
        )
    return torch.from_numpy(found.astype("int64"))


def _glance(array: Any) -> str:
    return f"{array.dtype} such as {', '.join(str(value) for value in sorted(set(array.tolist()), key=str)[:3])}"


def _torchvision(name: str, root: Path) -> Split:
    """Through torchvision, which downloads with a progress bar what is not under `root` yet."""
    from torchvision import datasets

    def images(made: Any, labels: Any, title: str) -> Images:
        pixels = torch.as_tensor(made)
        pixels = pixels if pixels.shape[1] == 3 else channels_first(pixels)
        found = None if labels is None else torch.as_tensor(labels, dtype=torch.long)
        return Images(title, pixels, found)

    try:
        if name in ("cifar10", "cifar100"):
            kind = datasets.CIFAR10 if name == "cifar10" else datasets.CIFAR100
            train, test = (kind(str(root), train=part, download=True) for part in (True, False))
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
            "put torchvision's files there, or give an .npz file with train_images, train_labels, test_images, test_labels"
        ) from error
    probe, test = (images(parts[p].data, parts[p].labels, f"{name} ({p})") for p in ("train", "test"))
    return Split(images(parts["train+unlabeled"].data, None, name), probe, test)


def _numbered(held_out: Images | Files, train: Images | Files) -> Images | Files:
    """The same, with classes numbered as in training: a folder's name says which it is."""
    if held_out.labels is None or train.labels is None:
        return held_out
    unknown = [name for name in held_out.classes if name not in train.classes]
    if unknown:
        raise ValueError(f"data: the test images have a class {unknown[0]!r} that the training images do not have")
    number = torch.tensor([train.classes.index(name) for name in held_out.classes])
    return replace(held_out, labels=number[held_out.labels], classes=train.classes)


def _from_folder(path: Path, read: Callable[[Path], Images | Files]) -> Split:
    def part(name: str) -> Images | Files:
        return replace(read(path / name), name=f"{path.name} ({name})")

    if (path / "train").is_dir():
        train = part("train")
        held_out = next((_numbered(part(p), train) for p in ("test", "val") if (path / p).is_dir()), None)
        labelled = held_out is not None and held_out.labels is not None and train.labels is not None
        return Split(train, train if labelled else None, held_out if labelled else None)
    return Split(read(path), None, None)
