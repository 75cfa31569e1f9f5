"""Read .npz files with MedMNIST's arrays. The declared types and shapes are checked before memory is allocated."""

from __future__ import annotations

import math
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from contrapose.lab.memory_budget import check_allocation
from contrapose.lab.modalities.images.images import MOST_CLASSES, Images, channels_first
from contrapose.lab.modalities.images.memory import check_memory
from contrapose.lab.modalities.source import Split

_LONGEST_HEADER = 2**16  # bytes of an array's type and shape


def read_archive(path: Path) -> Split:
    """Load the arrays train_images, train_labels, test_images and test_labels; only train_images is required.

    An optional array of strings, `classes`, contains the class names in the order of the labels.
    """
    try:
        archive = zipfile.ZipFile(path)
    # zipfile raises NotImplementedError for an unknown version of the format.
    except (OSError, zipfile.BadZipFile, NotImplementedError) as error:
        raise ValueError(f"data: {path} is not an .npz file") from error
    with archive:
        names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        if "train_images" not in names:
            listed = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
            raise ValueError(f"{path}: expected the array train_images, found {listed or 'nothing'}")
        train, test = (_part(archive, path, part) if f"{part}_images" in names else None for part in ("train", "test"))
    assert train is not None
    # Classification needs labels for training and test images; without labels, only training is possible.
    probe = train if train.labels is not None and test is not None and test.labels is not None else None
    return Split(train, probe, test if probe is not None else None)


def _part(archive: zipfile.ZipFile, path: Path, part: str) -> Images:
    """Read the training or the test images, and their labels if there are any."""
    name = f"{part}_images"
    shape, dtype = read_header(archive, path, name)
    if dtype != "uint8" or len(shape) not in (3, 4) or (len(shape) == 4 and shape[3] not in (1, 3)) or 0 in shape:
        raise ValueError(
            f"{path}: {name}: expected uint8 of shape (N, H, W) or (N, H, W, 3), channels last, got {_brief(dtype, shape)}"
        )
    labels = _labels(archive, path, f"{part}_labels", shape[0]) if f"{part}_labels.npy" in archive.namelist() else None
    # A gray value is stored three times, beside the file's own array.
    copies = 4 if len(shape) == 3 or shape[3] == 1 else 1
    pixels = channels_first(torch.from_numpy(_array(archive, path, name, copies=copies)))
    return Images(f"{path.name} ({part})", pixels, labels, _classes(archive, path, labels))


def _classes(archive: zipfile.ZipFile, path: Path, labels: Tensor | None) -> tuple[str, ...]:
    """Read the class names; empty if there are no names, or fewer names than labels."""
    if labels is None or "classes.npy" not in archive.namelist():
        return ()
    try:
        shape, dtype = read_header(archive, path, "classes")
    except ValueError:  # images and labels can be used without names
        return ()
    if dtype.kind != "U" or len(shape) != 1 or shape[0] <= int(labels.max()):
        return ()  # an unrelated array with this name, since it has no name for some labels
    check_allocation(2 * math.prod(shape) * dtype.itemsize, f"data: the array of classes in {path}")
    return tuple(_array(archive, path, "classes").tolist())


def _labels(archive: zipfile.ZipFile, path: Path, name: str, count: int) -> Tensor:
    """Read an array of class indices, one per image, as int64 (N,); `count` is the number of images."""
    shape, dtype = read_header(archive, path, name)
    if math.prod(shape) != count or dtype.kind not in "iuf":
        raise ValueError(
            f"{path}: {name}: expected one label for each of the {count} images, got {_brief(dtype, shape)}"
        )
    array = _array(archive, path, name).reshape(-1)  # MedMNIST's labels are (N, 1)
    # NaN fails the last check, since it differs from itself; a plain cast would turn NaN into a valid-looking integer.
    if (array < 0).any() or (array != array.round()).any():
        raise ValueError(
            f"{path}: {name}: expected whole numbers of at least 0, one for each image, got {_summary(array)}"
        )
    if (array >= MOST_CLASSES).any():
        raise ValueError(f"{path}: {name}: expected class numbers below {MOST_CLASSES:,}, got {array.max()}")
    return torch.from_numpy(array.astype("int64"))


def read_header(archive: zipfile.ZipFile, path: Path, name: str) -> tuple[tuple[int, ...], Any]:
    """Return the shape and the data type that an array declares; refuse an array that cannot be read safely.

    archive   the open .npz file
    path      of the archive, for messages
    name      of the array; raises KeyError if there is none
    """
    from numpy.lib import format as npy

    member = archive.getinfo(f"{name}.npy")
    try:
        with archive.open(member) as whole:
            file = BytesIO(whole.read(_LONGEST_HEADER))  # numpy would read gigabytes before it refuses them
            parse = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[npy.read_magic(file)]
            shape, _, dtype = parse(file)
    except Exception as error:
        raise _unreadable(path, name, error) from error
    if dtype.hasobject:
        raise ValueError(f"{path}: {name}: expected an array of numbers, got pickled objects, which could run code")
    declared = math.prod(shape) * dtype.itemsize
    # A short file can declare a huge array, which numpy would allocate before reading the first byte.
    if min(shape, default=0) < 0 or declared > member.file_size:
        raise ValueError(
            f"{path}: {name}: {_brief(dtype, shape)} does not fit in the {member.file_size:,} bytes of the file"
        )
    return shape, dtype


def _array(archive: zipfile.ZipFile, path: Path, name: str, *, copies: int = 1) -> Any:
    """Read an array whose header was checked; its content will be in memory `copies` times."""
    import numpy as np

    member = archive.getinfo(f"{name}.npy")
    check_memory(copies * member.file_size, f"the {name} of {path}", "use a folder of images and --stream")
    try:
        with archive.open(member) as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    except Exception as error:
        raise _unreadable(path, name, error) from error


def _unreadable(path: Path, name: str, error: Exception) -> ValueError:
    """Return the error for a damaged array: zipfile and numpy raise errors of many types."""
    why = " ".join(str(error).split())
    return ValueError(f"{path}: {name} cannot be read: {type(error).__name__}: {why}")


def _brief(dtype: Any, shape: tuple[int, ...]) -> str:
    """Return a data type and a shape, which may have thousands of parts, for an error message."""
    return f"{str(dtype)[:40]} {str(shape)[:60]}"


def _summary(array: Any) -> str:
    """Return the data type of an array and up to three of its values, for an error message."""
    return f"{array.dtype} such as {', '.join(str(value) for value in sorted(set(array.tolist()), key=str)[:3])}"
