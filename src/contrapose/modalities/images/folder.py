"""A folder of image files: one subfolder for each class, or all in one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from contrapose.modalities.images.images import Images, channels_first

ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm"}


@dataclass(frozen=True)
class Problem:
    """A file that is not an image that can be used, and why."""

    path: Path
    why: str


def files(folder: Path, only: Sequence[str] = ()) -> tuple[list[Path], list[int] | None, tuple[str, ...]]:
    """Image files in a fixed order, their classes (subfolders in alphabetical order) if there are any, and the names.

    With `only`, the images of these classes alone.
    """
    if not folder.is_dir():
        raise ValueError(f"data: expected a folder of images, {folder} is not one")
    classes = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if only:
        missing = sorted(set(only) - {p.name for p in classes})
        if missing:
            raise ValueError(
                f"classes: {len(missing)} of {len(only)} have no folder under {folder}, {missing[0]} among them"
            )
        classes = [p for p in classes if p.name in set(only)]
    found, labels = [], []
    for label, place in enumerate(classes or [folder]):
        inside = sorted(p for p in place.rglob("*") if p.suffix.lower() in ENDINGS and p.is_file())
        found += inside
        labels += [label] * len(inside)
    if not found:
        raise ValueError(f"data: no images under {folder} (looked for {', '.join(sorted(ENDINGS))})")
    return found, labels if len(classes) > 1 else None, tuple(p.name for p in classes)


def decode(path: Path, size: int | None = None, shorter: int | None = None) -> torch.Tensor:
    """One image as uint8 (H, W, 3); with `size`, its shorter side resized to `shorter`, or to `size`, and the centre cut out.

    An image that has the size stays as it is.
    """
    import numpy as np
    from PIL import Image

    with Image.open(path) as file:
        file.load()
        image = file.convert("RGB")
    if size is not None and image.size != (size, size):
        w, h = image.size
        scale = (shorter or size) / min(w, h)
        image = image.resize((max(size, round(w * scale)), max(size, round(h * scale))), Image.Resampling.BILINEAR)
        left, top = (image.width - size) // 2, (image.height - size) // 2
        image = image.crop((left, top, left + size, top + size))
    return torch.from_numpy(np.array(image))


def check_folder(folder: Path) -> tuple[int, list[Problem]]:
    """Read everything once: how many images there are, and every file that is broken."""
    found, _, _ = files(folder)
    problems = []
    for path in found:
        try:
            decode(path)
        except Exception as error:  # whatever a decoder does with a hostile file, the others are still to be checked
            problems.append(Problem(path, f"{type(error).__name__}: {error}"))
    return len(found), problems


def read_folder(folder: Path, only: Sequence[str] = (), size: int | None = None) -> Images:
    """All images of a folder in memory, at one size: that of the first image's shorter side, at most 256."""
    found, labels, classes = files(folder, only)
    pixels = []
    for place, path in enumerate(found):
        try:
            if size is None:
                size = min(256, *decode(path).shape[:2])
            pixels.append(decode(path, size))
        except Exception as error:
            raise ValueError(
                f"data: image {place}, {path}, cannot be read: {type(error).__name__}: {error} "
                "(`contrapose data check` names all such files)"
            ) from error
    made = channels_first(torch.stack(pixels))
    known = None if labels is None else torch.tensor(labels)
    return Images(folder.name, made, known, classes if labels else (), tuple(found))
