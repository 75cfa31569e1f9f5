"""Load data sets by name or by path."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from contrapose.lab.modalities.images.archive import read_archive
from contrapose.lab.modalities.images.class_names import CLASS_NAMES
from contrapose.lab.modalities.images.digits import DRAWINGS, digits
from contrapose.lab.modalities.images.file_sets import FILE_SETS, load_file_set
from contrapose.lab.modalities.images.image_shards import is_image_shards, list_shards
from contrapose.lab.modalities.images.imagenet100 import IMAGENET100
from contrapose.lab.modalities.images.images import Images, channels_first
from contrapose.lab.modalities.images.layout import split_folder
from contrapose.lab.modalities.images.packed import ENDING, read_packed
from contrapose.lab.modalities.images.sampling import sample
from contrapose.lab.modalities.input_files import check_file, read_text
from contrapose.lab.modalities.modality import DataSettings
from contrapose.lab.modalities.source import Split
from contrapose.validate import nearest

# Data sets that can be loaded by name, with their numbers of classes.
NAMED = (
    dict.fromkeys(DRAWINGS, 10)
    | {"cifar10": 10, "cifar100": 100, "svhn": 10, "stl10": 10, "mnist": 10}
    | {name: file_set.classes for name, file_set in FILE_SETS.items()}
)


def list_named() -> list[str]:
    """Return a line about each data set that can be loaded by name."""
    lines = []
    for name, classes in NAMED.items():
        origin = "built in" if name in DRAWINGS else "downloaded by torchvision"
        if name in FILE_SETS and not FILE_SETS[name].download:
            origin = "read by torchvision, which cannot download it any more"
        lines.append(f"{name:14} {classes:4} classes   {origin}")
    return lines


def load(
    name: str,
    *,
    limit: int = 0,
    root: Path | None = None,
    classes: str = "",
    hold_out: float = DataSettings.hold_out,
    skip_broken: bool = False,
) -> Split:
    """Load a data set by name (downloaded to `root` if needed), an .npz file or a packed copy, or list the images in a folder.

    `classes` names the class folders to keep: "imagenet100", or a text file with one name per line. `limit` is the size of a
    stratified sample to train on; 0 keeps all images. `hold_out` is the share of each class that is held out if a folder has
    no test images. `skip_broken` uses the complete files of a tar that ends early.
    """
    check_name(name)
    only = class_list(classes)
    if only and (not Path(name).is_dir() or is_image_shards(Path(name))):
        raise ValueError(f"classes: only a folder with one subfolder per class has a choice of classes, got {name}")
    if name in DRAWINGS:
        drawn = digits(limit or DRAWINGS[name].training_images, name=name)
        # A short trial run gets few test images too, so that its evaluation does not take longer than its training.
        test = digits(min(DRAWINGS[name].test_images, max(200, len(drawn))), train=False, name=name)
        return Split(drawn, drawn, test)
    if name in NAMED:
        split = _torchvision(name, root or Path("data"), hold_out=hold_out)
    elif name.endswith(".npz") and not Path(name).is_dir():
        split = read_archive(Path(name))
    elif name.endswith(ENDING) and not Path(name).is_dir():
        split = read_packed(Path(name))
    elif is_image_shards(Path(name)):
        split = list_shards(Path(name), hold_out=hold_out, skip_broken=skip_broken)
    else:
        split = split_folder(Path(name), only, hold_out=hold_out)
    return limited(split, limit, name)


def limited(split: Split, limit: int, name: str) -> Split:
    """Return a split whose training images are a stratified sample of `limit` images; 0 keeps all."""
    if not limit:
        return split
    if limit > len(split.train):
        raise ValueError(f"limit: expected at most the {len(split.train)} training images of {name}, got {limit}")
    train = split.train.subset(sample(split.train.labels, len(split.train), limit))
    # `limit` applies only to training, not to a separate probe set (STL-10's labelled images).
    return replace(split, train=train, probe=train if split.probe is split.train else split.probe)


def class_list(classes: str) -> tuple[str, ...]:
    """Return the names of the class folders to keep; empty keeps all."""
    if not classes:
        return ()
    if classes == "imagenet100":
        return IMAGENET100
    if not Path(classes).is_file():
        raise ValueError(f"classes: expected imagenet100 or a text file with one name per line, got {classes!r}")
    lines = (line.strip() for line in read_text(Path(classes), "classes").splitlines())
    names = tuple(dict.fromkeys(name for name in lines if name))
    if not names:  # an empty list would keep all classes
        raise ValueError(f"classes: expected a text file with one name per line, but {classes} has none")
    return names


def check_name(name: str, argument: str = "data") -> None:
    """Without reading data, raise a ValueError that names the argument if `name` is neither a known data set nor a path."""
    if name in NAMED or is_image_shards(Path(name)):
        return
    if Path(name).exists():
        if not Path(name).is_dir():
            check_file(Path(name), argument)
        return
    hint = nearest(name, NAMED)
    raise ValueError(
        f"{argument}: expected one of {', '.join(NAMED)}, a folder or tars of images, a packed copy or an .npz file, got "
        f"{name!r}{hint}" + ("" if hint else ", which does not exist (relative paths start at the working directory)")
    )


def can_stream(name: str) -> bool:
    """Return whether a data set, given by name or path, consists of image files, which can stay on disk."""
    return name in FILE_SETS or Path(name).is_dir() or is_image_shards(Path(name))


def _torchvision(name: str, root: Path, *, hold_out: float) -> Split:
    """Load a data set through torchvision, which downloads it to `root` if it is not there yet."""
    from torchvision import datasets

    def images(data: Any, labels: Any, title: str) -> Images:
        pixels = torch.as_tensor(data)
        # SVHN and STL-10 have channels first in torchvision, CIFAR has them last.
        pixels = pixels if pixels.shape[1] == 3 else channels_first(pixels)
        labels = None if labels is None else torch.as_tensor(labels, dtype=torch.long)
        return Images(title, pixels, labels, CLASS_NAMES[name])

    try:
        if name in FILE_SETS:
            return load_file_set(name, root, hold_out=hold_out)
        if name in ("cifar10", "cifar100", "mnist"):
            dataset = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100, "mnist": datasets.MNIST}[name]
            train, test = (dataset(str(root), train=part, download=True) for part in (True, False))
            first, second = images(train.data, train.targets, name), images(test.data, test.targets, f"{name} (test)")
            return Split(first, first, second)
        if name == "svhn":
            train, test = (datasets.SVHN(str(root), split=part, download=True) for part in ("train", "test"))
            first, second = images(train.data, train.labels, name), images(test.data, test.labels, f"{name} (test)")
            return Split(first, first, second)
        parts = {p: datasets.STL10(str(root), split=p, download=True) for p in ("train+unlabeled", "train", "test")}
    except (OSError, RuntimeError, ImportError) as error:  # some data sets need scipy
        raise ValueError(
            f"data: {name} is not under {root} and could not be downloaded ({error}); "
            f"put torchvision's files under {root}, or pass a folder with train/ and test/, class folders inside, or an .npz "
            "file with train_images, train_labels, test_images and test_labels"
        ) from error
    probe, test = (images(parts[p].data, parts[p].labels, f"{name} ({p})") for p in ("train", "test"))
    return Split(images(parts["train+unlabeled"].data, None, name), probe, test)
