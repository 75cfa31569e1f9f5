"""Folders of image files, with one subfolder per class or without classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from contrapose.modalities.images.images import Images, channels_first

ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm"}


@dataclass(frozen=True)
class Problem:
    """A file that cannot be read as an image, and the reason."""

    path: Path
    why: str


def files(folder: Path, only: Sequence[str] = ()) -> tuple[list[Path], list[int] | None, tuple[str, ...]]:
    """Return the image files of a folder in a fixed order, their labels and the names of the classes.

    Classes are the subfolders in alphabetical order; labels are None if there are fewer than two. `only` keeps the
    images of these classes.
    """
    if not folder.is_dir():
        raise ValueError(f"data: expected a folder of images, but {folder} is not a folder")
    classes = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if only:
        missing = sorted(set(only) - {p.name for p in classes})
        if missing:
            raise ValueError(
                f"classes: {len(missing)} of {len(only)} have no folder under {folder}, for example {missing[0]}"
            )
        classes = [p for p in classes if p.name in set(only)]
    paths, labels = [], []
    for label, class_folder in enumerate(classes or [folder]):
        # Sorted, because the order of a directory listing depends on the file system, and indices must not.
        members = sorted(p for p in class_folder.rglob("*") if p.suffix.lower() in ENDINGS and p.is_file())
        paths += members
        labels += [label] * len(members)
    if not paths:
        raise ValueError(f"data: no images under {folder} (looked for {', '.join(sorted(ENDINGS))})")
    return paths, labels if len(classes) > 1 else None, tuple(p.name for p in classes)


def decode(path: Path, size: int | None = None, shorter: int | None = None) -> torch.Tensor:
    """Decode an image as uint8 (H, W, 3).

    With `size`, resize its shorter side to `shorter` (default: `size`) and crop the centre to size × size, unless the
    image already has this size.
    """
    import numpy as np
    from PIL import Image

    with Image.open(path) as file:
        file.load()
        image = file.convert("RGB")
    if size is not None and image.size != (size, size):
        w, h = image.size
        scale = (shorter or size) / min(w, h)
        # Each side must have at least `size` pixels, or the crop would reach outside the image.
        image = image.resize((max(size, round(w * scale)), max(size, round(h * scale))), Image.Resampling.BILINEAR)
        left, top = (image.width - size) // 2, (image.height - size) // 2
        image = image.crop((left, top, left + size, top + size))
    return torch.from_numpy(np.array(image))


def check_folder(folder: Path) -> tuple[int, list[Problem]]:
    """Decode every image of a folder; return the number of images and the files that cannot be read."""
    paths, _, _ = files(folder)
    problems = []
    for path in paths:
        try:
            decode(path)
        except Exception as error:  # decoders raise errors of many types, and the other files must still be checked
            problems.append(Problem(path, f"{type(error).__name__}: {error}"))
    return len(paths), problems


def read_folder(folder: Path, only: Sequence[str] = (), size: int | None = None) -> Images:
    """Read all images of a folder into memory at one size, by default the first image's shorter side, at most 256."""
    paths, labels, classes = files(folder, only)
    images = []
    for index, path in enumerate(paths):
        try:
            if size is None:
                size = min(256, *decode(path).shape[:2])
            images.append(decode(path, size))
        except Exception as error:
            raise ValueError(
                f"data: image {index}, {path}, cannot be read: {type(error).__name__}: {error} "
                "(`contrapose data check` lists all such files)"
            ) from error
    pixels = channels_first(torch.stack(images))
    label_tensor = None if labels is None else torch.tensor(labels)
    return Images(folder.name, pixels, label_tensor, classes if labels else (), tuple(paths))
