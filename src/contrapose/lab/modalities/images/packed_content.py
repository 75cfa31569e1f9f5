"""Check what a packed copy contains: a file from elsewhere can have a correct checksum and impossible content."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from contrapose.lab.modalities.images.images import MOST_CLASSES

_LARGEST = 2**14  # pixels of a side


def check_content(path: Path, metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> None:
    """Raise ValueError if settings or tensors of a packed copy have types, shapes or values that no copy has.

    path       the packed copy, for the message
    metadata   its settings, none of which is missing
    tensors    its tensors, by name
    """
    try:
        classes = _check_settings(metadata)
        for part in ("train", "test"):
            if f"{part}_images" in tensors:
                _check_part(part, tensors, len(classes) or MOST_CLASSES)
    except (ValueError, RecursionError) as error:
        why = " ".join(str(error).split())[:200]
        raise ValueError(f"data: {path}, a packed copy, is damaged: {why}; pack the images again") from error


def _check_settings(metadata: Mapping[str, str]) -> list[str]:
    """Return the names of the classes; raise ValueError if a setting cannot be used."""
    hold_out, view_size = float(metadata["hold_out"]), int(metadata["view_size"])
    if not math.isfinite(hold_out) or not 0 < view_size <= _LARGEST:
        raise ValueError(f"its hold_out is {hold_out:g}, and its view_size {str(view_size)[:20]}")
    lists = {name: _value(metadata, name, "[]") for name in ("classes", "only", "notes")}
    names = _value(metadata, "source_names", "{}")
    others = [name for name, value in lists.items() if not isinstance(value, list) or not _are_texts(value)]
    if others or not isinstance(names, dict) or not _are_texts([*names.values()]):
        raise ValueError(f"its {(others or ['source_names'])[0]} are no texts")
    return list(lists["classes"])


def _value(metadata: Mapping[str, str], name: str, default: str) -> Any:
    try:
        return json.loads(metadata.get(name, default))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its {name} are not JSON: {error}") from error


def _are_texts(values: list[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _check_part(part: str, tensors: Mapping[str, Tensor], most: int) -> None:
    """Raise ValueError unless the training or test images fit their names and labels.

    part      "train" or "test"
    tensors   all tensors, by name
    most      number that each label is below
    """
    images, names, labels = (tensors.get(f"{part}_{kind}") for kind in ("images", "names", "labels"))
    if images is None or images.dtype != torch.uint8 or images.ndim != 4 or 0 in images.shape or images.shape[1] != 3:
        raise ValueError(f"its {part}_images are no images of uint8")
    if names is None or names.dtype != torch.uint8 or int((names == 0).sum()) + 1 != len(images) or names.ndim != 1:
        raise ValueError(f"its {part}_names are not one name for each of {len(images):,} images")
    if labels is None:
        return
    if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
        raise ValueError(f"its {part}_labels are not one whole number for each of {len(images):,} images")
    if int(labels.min()) < 0 or int(labels.max()) >= most:
        raise ValueError(f"its {part}_labels are not from 0 to {most - 1:,}")
